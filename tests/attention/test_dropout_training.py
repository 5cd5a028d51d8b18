"""Training with dropout: deterministic, the same on every path, and bit for bit the same after a killed process resumes."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_cases import needs_kernel
from recombine.attention import definition as reference
from recombine.attention.dispatch import use_kernel
from recombine.models.registry import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.in_context import InContext
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.directory import RunDirectory
from recombine.training.loop import Trainer
from recombine.training.run import train_run

SIZES: dict[str, Any] = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 16, "num_heads": 4}
TASK = FuzzyLogic(num_examples=8)


def build_trainer(task=TASK, compile=False, **choices):
    config = TransformerConfig(**SIZES, **choices)
    model = build_model(config, task, seed=0)
    return Trainer(model, task, TrainingConfig(steps=100, batch_size=32), "cpu", compile=compile)


def train(trainer, steps):
    return torch.stack([trainer.advance() for _ in range(steps)])


@pytest.mark.parametrize("form", ["pairs", "elements"])
def test_the_same_bits_whatever_torch_draws_meanwhile(form):
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(train(build_trainer(attention_dropout=0.2, attention_dropout_form=form), 10))
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], train(build_trainer(), 10))


@needs_kernel
@pytest.mark.parametrize("form", ["pairs", "elements"])
@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_the_same_losses_by_kernel_and_by_definition(attention, form, monkeypatch):
    choices: dict[str, Any] = {"attention": attention, "attention_dropout": 0.2, "attention_dropout_form": form}
    with use_kernel("reference"):
        expected = train(build_trainer(**choices), 20)
    monkeypatch.setattr(reference, "attend", None)  # training keeps the fused path
    torch.testing.assert_close(train(build_trainer(**choices), 20), expected, rtol=1e-4, atol=1e-5)


@needs_kernel
@pytest.mark.parametrize("attention", ["softmax", "hyla"])
def test_isolated_queries_keep_the_fused_path(attention, monkeypatch):
    task = InContext(input_size=4, hidden_size=8, num_examples=7, num_queries=4)
    with use_kernel("reference"):
        expected = train(build_trainer(task, attention=attention, attention_dropout=0.2), 5)
    monkeypatch.setattr(reference, "attend", None)
    losses = train(build_trainer(task, attention=attention, attention_dropout=0.2), 5)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


def test_a_loaded_trainer_goes_on_as_if_never_stopped():
    whole, first, second = (build_trainer(attention_dropout=0.2) for _ in range(3))
    expected = train(whole, 8)[4:]
    train(first, 4)
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()}, first.step)
    assert torch.equal(train(second, 4), expected)


@needs_kernel
@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_compiled_training_agrees_and_is_compiled_once():
    torch._dynamo.reset()
    expected = train(build_trainer(attention_dropout=0.2), 5)
    trainer = build_trainer(attention_dropout=0.2, compile=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        losses = train(trainer, 5)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


CONFIG = RunConfig(
    task=TASK,
    model=TransformerConfig(**SIZES, attention_dropout=0.1),
    training=TrainingConfig(steps=120, batch_size=16, warmup_steps=5),
)
UNTIL_KILLED = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_dropout_training import CONFIG
from recombine.run import train_run

def watch(progress):
    print(progress.step, flush=True)
    if progress.step >= 60:
        time.sleep(600)

train_run(CONFIG, out=sys.argv[1], evaluation_instances=200, watch=watch)
"""


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    finished = train_run(CONFIG, out=tmp_path / "finished", evaluation_instances=200)
    command = [sys.executable, "-c", UNTIL_KILLED, str(tmp_path / "killed"), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while int(process.stdout.readline()) < 60:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    (path,) = (tmp_path / "killed").iterdir()
    assert 0 < RunDirectory.open(path).load_checkpoint()[1]["step"] < 120
    resumed = train_run(CONFIG, out=tmp_path / "killed", evaluation_instances=200)
    assert resumed.path == path
    expected, actual = (run.load_checkpoint()[0] for run in (finished, resumed))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
