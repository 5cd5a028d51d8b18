"""Sequence teachers: the splits, padding and scores; the functions against their definitions, token by token in Python."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.random import Stream
from recombine.tasks.sequences.functions import draw_rotation, draw_weights
from recombine.tasks.sequences.teacher import SequenceTeacher

CLASSES = ("deep_set", "attention", "ssm", "rnn", "product")
SMALL: dict[str, Any] = {"token_dim": 3, "teacher_dim": 4, "target_dim": 2, "longest": 14}
TASK = SequenceTeacher(**SMALL)


def test_lengths_of_the_splits():
    task = SequenceTeacher()
    assert [len(composition) for composition in task.split.train] == list(range(2, 11))
    assert [len(composition) for composition in task.split.ood] == list(range(11, 101))
    certificate = task.split.certificate
    assert (certificate.min_coverage, certificate.connected, certificate.overlap) == (9, True, 0)
    for split, longest in (("train", 10), ("test", 10), ("ood", 100)):
        batch = task.sample(split, 0, batch_size=500)
        assert batch.inputs.shape == (500, longest, 20)
        compositions = task.split.compositions(split)
        assert [len(compositions[i]) for i in batch.composition] == batch.info["length"].tolist()
        assert set(batch.info["length"].tolist()) <= set(range(*task.lengths(split))) | {longest}
        assert ((batch.latents == 0).sum(dim=1) == batch.info["length"]).all()


def test_padding_is_zero_and_never_counts():
    batch = TASK.sample("test", 0, batch_size=50)
    padding = torch.arange(10) >= batch.info["length"][:, None]
    for values in (batch.inputs, batch.targets, batch.info["hidden"]):
        assert (values[padding] == 0).all()
        assert (values[~padding] != 0).any(dim=-1).all()
    predictions = batch.targets + 0.1
    spoiled = torch.where(padding[..., None], torch.tensor(1e6), predictions)
    assert torch.equal(TASK.loss(spoiled, batch), TASK.loss(predictions, batch))
    assert TASK.loss(predictions, batch).item() == pytest.approx(0.01, rel=1e-4)
    for name, ratio in TASK.metrics(spoiled, batch).items():
        assert torch.equal(ratio.numerator, TASK.metrics(predictions, batch)[name].numerator)


def test_scores_by_hand():
    batch = TASK.sample("test", 0, batch_size=40)
    predictions = batch.targets * 0.9
    metrics = {
        name: (r.numerator.sum() / r.denominator.sum()).item() for name, r in TASK.metrics(predictions, batch).items()
    }
    error = constant = total = tokens = 0.0
    for row in range(40):
        length = batch.info["length"][row].item()
        last = batch.targets[row, length - 1]
        error += (0.1 * last).square().mean().item()
        constant += (last - TASK.position_means[length - 1]).square().mean().item()
        total += (0.1 * batch.targets[row, :length]).square().mean(dim=-1).sum().item()
        tokens += length
    assert metrics["loss"] == pytest.approx(error / 40, rel=1e-4)
    assert metrics["r2"] == pytest.approx(1 - error / constant, rel=1e-4)
    assert metrics["loss_all_tokens"] == pytest.approx(total / tokens, rel=1e-4)


@pytest.mark.parametrize("split", ["test", "ood"])
@pytest.mark.parametrize("name", CLASSES)
def test_between_the_best_constant_and_the_teacher(name, split):
    task = SequenceTeacher(teacher=name, **SMALL)
    batch = task.sample(split, 0, batch_size=4_000)
    best = task.best_predictions(batch, split=split, metric="loss")
    ceiling, chance = (task.metrics(predictions, batch) for predictions in (best, task.chance(batch)))
    assert ceiling["loss"].numerator.sum() == 0
    assert chance["r2"].numerator.sum() == 0
    length = task.lengths(split)[1]
    rows = batch.info["length"] == length
    spread = batch.targets[rows, length - 1].var(dim=0, correction=0).mean().item()
    assert chance["loss"].numerator[rows].mean().item() == pytest.approx(spread, rel=0.1)


def test_chain_of_thought_adds_the_error_of_hidden_states():
    task = SequenceTeacher(chain_of_thought=0.5, **SMALL)
    batch = task.sample("train", 0, batch_size=20)
    perfect = torch.cat([batch.targets, batch.info["hidden"]], dim=-1)
    assert task.loss(perfect, batch) == 0
    wrong = torch.cat([batch.targets, batch.info["hidden"] + 0.2], dim=-1)
    assert task.loss(wrong, batch).item() == pytest.approx(0.5 * 0.04, rel=1e-3)
    assert task.metrics(wrong, batch)["loss"].numerator.sum() == 0
    assert TASK.loss(wrong, batch) == 0
    with pytest.raises(InputError, match=r"because chain_of_thought is 0\.5"):
        task.loss(batch.targets, batch)


def test_corners():
    task = SequenceTeacher(generalise_to="corners", max_length=10)
    assert len(task.split.ood) == 64
    assert task.split.certificate.min_coverage == 1
    trained = task.sample("train", 0, batch_size=2_000)
    sums = trained.inputs.sum(dim=1)
    assert ((sums[:, :10] >= 2.5) & (sums[:, :10] <= 7.5)).all()
    assert (sums[:, 10:] < 2.5).any()
    held_out = task.sample("ood", 0, batch_size=500)
    low, high = (held_out.inputs <= 0.25).all(dim=1), (held_out.inputs >= 0.75).all(dim=1)
    assert (low ^ high).all()
    assert torch.equal(held_out.latents % 2, high.long())
    assert torch.equal(held_out.latents // 2, torch.arange(20).expand(500, -1))


def test_diversity():
    narrow = SequenceTeacher(support=0.2, **SMALL)
    real = narrow.sample("train", 0, batch_size=200).inputs
    real = real[real > 0]
    assert 0.4 <= real.min() < 0.42
    assert 0.58 < real.max() <= 0.6
    assert torch.equal(narrow.sample("ood", 0).inputs, TASK.sample("ood", 0).inputs)
    pool = SequenceTeacher(num_sequences=5, **SMALL)
    rows = torch.cat([pool.sample("train", i, batch_size=50).inputs.flatten(1) for i in range(3)])
    assert len(rows.unique(dim=0)) == 5
    assert len(pool.sample("test", 0, batch_size=50).inputs.flatten(1).unique(dim=0)) == 50


def naive_layers(weights, prefix: str, x: Tensor) -> Tensor:
    for i in range(2):
        if f"{prefix}.{i}.weight" in weights:
            x = torch.sigmoid(weights[f"{prefix}.{i}.weight"].double() @ x + weights[f"{prefix}.{i}.bias"])
    return x


def naive_weight(score: Tensor, scores: list[Tensor], kind: str) -> Tensor:
    if kind == "softmax":
        return score.exp() / sum(other.exp() for other in scores)
    return {"sigmoid": score.sigmoid(), "linear": score, "relu": score.clamp_min(0)}[kind] / len(scores)


def naive_hidden(name: str, weights, tokens: Tensor, kind: str) -> Any:
    """The hidden state after the last token, by the definition, one token at a time."""
    if name in ("deep_set", "product"):
        features = [naive_layers(weights, "embed", x) for x in tokens]
        return sum(features) if name == "deep_set" else math.prod(features)
    if name == "attention":
        query, key, value = (weights[part].double() for part in ("query", "key", "value"))
        scores = [(query @ tokens[-1]) @ (key @ x) / math.sqrt(len(query)) for x in tokens]
        mixed = zip(scores, tokens, strict=True)
        return sum(naive_weight(score, scores, kind) * (value @ x) for score, x in mixed)
    h = torch.zeros(len(weights["recurrence"])).double()
    for x in tokens:
        h = weights["recurrence"].double() @ h + weights["input"].double() @ x
        h = h.sigmoid() if name == "rnn" else h
    return h


@pytest.mark.parametrize("readout", ["linear", "mlp"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "sigmoid") for name in CLASSES] + [("attention", kind) for kind in ("softmax", "linear", "relu")],
)
def test_teachers_follow_their_definitions(name, kind, readout):
    task = SequenceTeacher(teacher=name, teacher_readout=readout, teacher_attention=kind, **SMALL)
    batch = task.sample("ood", 0, batch_size=2)
    for row in range(2):
        length = batch.info["length"][row].item()
        for t in (1, 2, length):
            hidden = naive_hidden(name, task.weights, batch.inputs[row, :t].double(), kind)
            output = naive_layers(task.weights, "readout", hidden)
            for found, expected in ((batch.info["hidden"], hidden), (batch.targets, output)):
                torch.testing.assert_close(found[row, t - 1].double(), expected, atol=1e-5, rtol=1e-6)


def test_weights_are_those_of_the_release():
    weights = draw_weights("ssm", "mlp", dims=(50, 60, 40), seed=1)
    normal = torch.cat([value.flatten() for name, value in weights.items() if "weight" in name or name == "input"])
    assert normal.std().item() == pytest.approx(0.6, rel=0.03)
    assert abs(normal.mean().item()) < 0.02
    assert all((value == 0).all() for name, value in weights.items() if "bias" in name)
    for size in (1, 2, 5, 20, 60):
        rotation = draw_rotation(Stream("test", size, rows=range(size)), size).double()
        torch.testing.assert_close(rotation @ rotation.T, torch.eye(size).double(), atol=1e-5, rtol=0)
        assert torch.linalg.det(rotation).item() == pytest.approx(1, abs=1e-4)


def test_the_teacher_depends_on_class_sizes_and_seed_alone():
    for other in ({"longest": 20}, {"support": 0.1}, {"num_sequences": 5}, {"generalise_to": "corners"}):
        changed = SequenceTeacher(**{**SMALL, **other})
        assert all(torch.equal(changed.weights[name], value) for name, value in TASK.weights.items())
    assert not torch.equal(SequenceTeacher(**SMALL, seed=1).weights["embed.0.weight"], TASK.weights["embed.0.weight"])
