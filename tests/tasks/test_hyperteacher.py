"""Hyperteacher: the definition, latents, splits, encodings, scores, models on it, and the command line."""

import math
from dataclasses import replace

import pytest
import torch

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.hypernetwork import HypernetworkConfig
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.sampling import BATCH_SIZE
from recombine.training.config import TrainingConfig
from recombine.training.score import score
from recombine.training.trainer import Trainer

TASK = Hyperteacher()
SMALL = Hyperteacher(num_modules=6, num_active=2, x_dim=3, teacher_dim=5, y_dim=4, num_samples=4)
ENCODINGS = ("identity", "orthogonal", "tokens", "invertible", "interval_shuffle", "few_shot")


def naive_output(task: Hyperteacher, strengths: list[float], x: list[float]) -> list[float]:
    """The definition, one number at a time."""
    for weights, biases in zip(task.teacher.weights, task.teacher.biases, strict=True):
        hidden = []
        for unit in range(weights.shape[2]):
            total = 0.0
            for module, strength in enumerate(strengths):
                scaled = strength / math.sqrt(task.num_active)
                total += scaled * biases[module, unit].item()
                total += sum(scaled * weights[module, i, unit].item() * x[i] for i in range(len(x)))
            hidden.append(max(total, 0.0))
        x = hidden
    return [sum(x[i] * task.teacher.readout[i, out].item() for i in range(len(x))) for out in range(task.output_dim)]


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("split", ["train", "ood", "unknown"])
def test_batches_follow_the_definition(split, num_layers):
    task = replace(SMALL, teacher_layers=num_layers)
    batch = task.sample(split, 2, batch_size=5)
    assert batch.inputs.shape == (5, 4, 6 + 3)
    for row in range(5):
        strengths = batch.info["strengths"][row].tolist()
        modules = [module for module in batch.latents[row].tolist() if module >= 0]
        assert tuple(modules) == task.split.compositions(split)[batch.composition[row]]
        assert [m for m, strength in enumerate(strengths) if strength > 0] == modules
        for sample in range(4):
            assert torch.equal(batch.inputs[row, sample, :6], batch.info["strengths"][row])
            expected = naive_output(task, strengths, batch.inputs[row, sample, 6:].tolist())
            assert batch.targets[row, sample].tolist() == pytest.approx(expected, abs=1e-5)


def test_sizes_and_counts_of_the_paper():
    assert (TASK.input_dim, TASK.output_dim, TASK.sequence_length, TASK.num_read) == (32, 16, 16, 16)
    certificate = TASK.split.certificate
    assert (certificate.num_train, certificate.num_ood, certificate.num_unknown) == (522, 174, 1820)
    task = replace(SMALL, train_samples=2)
    assert task.train_length == task.sample("train", 0).inputs.shape[1] == 2
    assert task.sequence_length == task.sample("test", 0).inputs.shape[1] == 4


def test_latents_have_the_values_they_should():
    for latents, allowed in {"discrete": {5, 6, 7, 8, 9, 10}, "k_hot": {10}}.items():
        strengths = replace(TASK, latents=latents).sample("test", 0, batch_size=500).info["strengths"]
        active = strengths[strengths > 0]
        assert {round(10 * value) for value in active.tolist()} == allowed
        torch.testing.assert_close(active * 10, (active * 10).round(), atol=1e-5, rtol=0)
    strengths = replace(TASK, latents="continuous").sample("test", 0, batch_size=500).info["strengths"]
    active = strengths[strengths > 0]
    assert 0.5 <= active.min() < 0.51 < 0.99 < active.max() < 1
    assert len(active.unique()) > 900


def test_unknown_tasks_mix_more_modules():
    assert {len(each) for each in replace(TASK, num_extra=2, num_modules=8).split.unknown} == {4, 5}
    with pytest.raises(InputError, match="split 'unknown' of task 'hyperteacher' is empty: expected num_extra"):
        replace(SMALL, num_extra=0).sample("unknown", 0)
    assert TASK.split_title("unknown") == "more modules at once"
    assert replace(TASK, support="non_compositional").split_title("unknown") == "unseen modules"
    assert not Hyperteacher(num_modules=4, num_active=4).split.unknown
    batch = TASK.sample("unknown", 0)
    assert ((batch.info["strengths"] > 0).sum(dim=1) == 4).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_makes_a_batch_of_the_same_tasks(encoding):
    task = replace(SMALL, encoding=encoding, num_shots=7)
    batch, plain = task.sample("ood", 1, batch_size=9), SMALL.sample("ood", 1, batch_size=9)
    assert batch.inputs.shape == (9, 4, task.input_dim)
    assert torch.equal(batch.targets, plain.targets)
    code = batch.inputs[..., : task.encoding_dim]
    assert torch.equal(code, code[:, :1].expand_as(code))
    assert (encoding == "identity") == torch.equal(code, plain.inputs[..., :6])
    answers = task.apply(batch.info["strengths"], batch.inputs[..., task.encoding_dim :])
    torch.testing.assert_close(answers, batch.targets)


def test_few_shots_are_examples_of_the_task_and_not_its_questions():
    task = replace(SMALL, encoding="few_shot", num_shots=7)
    batch = task.sample("test", 0, batch_size=9)
    shots = batch.inputs[:, 0, : task.encoding_dim].view(9, 7, 3 + 4)
    torch.testing.assert_close(task.apply(batch.info["strengths"], shots[..., :3]), shots[..., 3:])
    questions = batch.inputs[..., task.encoding_dim :]
    assert not (shots[:, :, None, :3] == questions[:, None]).all(dim=-1).any()


@pytest.mark.parametrize("encoding", ["orthogonal", "few_shot"])
def test_training_goes_on_after_a_score_on_its_own_batches(encoding):
    """A score runs in inference mode; what a task keeps from it, such as tables and weights, must be fit for training."""
    task = replace(SMALL, encoding=encoding)
    model = build_model(HypernetworkConfig(hidden_dim=4), task, seed=0)
    score(model, task, splits=("train", "test"), num_instances=BATCH_SIZE, references=False)
    losses = [
        Trainer(model, each, TrainingConfig(batch_size=BATCH_SIZE, learning_rate=1e-9), "cpu").advance()
        for each in (task, replace(task))
    ]
    assert losses[0] == losses[1]


def test_the_ceiling_is_perfect():
    for split in ("test", "ood", "unknown"):
        batch = TASK.sample(split, 0)
        for prior in (split, None):
            best = TASK.best_predictions(batch, split=prior, metric="r2")
            assert all((ratio.numerator == ratio.denominator).all() for ratio in TASK.metrics(best, batch).values())


def test_check_says_that_a_module_is_not_trained(capsys):
    flags = ["--num-modules", "6", "--support", "non_compositional", "--num-instances", "200"]
    assert run_verb(["check", "hyperteacher", *flags]) == 0
    out = capsys.readouterr().out
    assert "NO, at least 0 times" in out
