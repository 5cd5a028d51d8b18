"""Speed: the contenders compute the same, the measurements are of what they say, and `recombine bench` shows them."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from recombine.attention.cpu import kernels as cpu
from recombine.attention.dispatch import use_kernel
from recombine.cli import main as cli
from recombine.cli.bench import attention, chart, generators, growth, lengths, machine, steps
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.training.config import default_run
from recombine.training.loop import Trainer

needs_kernel = pytest.mark.skipif(not cpu.is_available(), reason=f"no kernel: {cpu.why_unavailable()}")


@pytest.fixture
def small(monkeypatch):
    """Everything that is measured, in sizes of a test, and without the seconds that compilation takes."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(steps, "default_run", partial(default_run, scale="tiny"))
    monkeypatch.setattr(steps, "WORKLOADS", ("fuzzy_logic", "language"))
    monkeypatch.setattr(steps, "LANGUAGE", replace(steps.LANGUAGE, num_layers=1, embedding_dim=16, kqv_dim=16))
    monkeypatch.setattr(steps, "LANGUAGE_TOKENS", 8)
    monkeypatch.setattr(attention, "SHAPES", {"small": attention.Shape(b=2, q=3, k=5, h=2, d=2)})
    monkeypatch.setattr(growth, "CURVES", {"length": ((4, 8), lambda n: replace(growth.BASE, b=2, q=n, k=n))})
    monkeypatch.setattr(growth, "DEPTHS", (1, 2))
    monkeypatch.setattr(growth, "MEMORY_LENGTHS", (16, 32))
    monkeypatch.setattr(growth, "MOST_PLAIN", 16)
    monkeypatch.setattr(generators, "TASKS", ["hyperteacher"])
    monkeypatch.setattr(lengths, "LENGTHS", (8,))
    monkeypatch.setattr(lengths, "LINEAR_ONLY", (16,))
    monkeypatch.setattr(lengths, "TOKENS", 16)
    monkeypatch.setattr(lengths, "DROPOUT_WORKLOAD", "language")
    monkeypatch.setattr(machine, "MIN_ROUNDS", 1)


def train(config, kernel, num_steps):
    trainer = Trainer(build_model(config.model, config.task, seed=0), config.task, config.training, "cpu")
    with use_kernel(kernel):
        return torch.stack([trainer.advance() for _ in range(num_steps)])


@needs_kernel
@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param("fuzzy_logic", "hyla", marks=pytest.mark.slow),
        pytest.param("fuzzy_logic", "softmax", marks=pytest.mark.slow),
        pytest.param("sraven", "softmax", marks=pytest.mark.slow),
        pytest.param("sraven", "linear", marks=pytest.mark.slow),
    ],
)
def test_the_same_training_curve_over_500_steps(task, name, unchecked):
    config = default_run(task, "tiny")
    model = TransformerConfig(attention=name, embedding_dim=32, mlp_dim=64, kqv_dim=16, num_heads=4)
    training = replace(config.training, steps=500, batch_size=8, warmup_steps=50)
    config = replace(config, model=model, training=training)
    plain, fused = (train(config, kernel, 500) for kernel in ("reference", "auto"))
    assert plain[-50:].mean() < 0.97 * plain[:50].mean()  # it learns, so parameters do move
    torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-6)


def test_reading_late_is_the_same_model():
    workload = steps.make_workload("fuzzy_logic", "hyla", "float32")
    model, late = workload.make_model(), steps.ReadLate(workload.make_model())
    inputs = default_run("fuzzy_logic").task.sample("train", 0, batch_size=4).inputs
    torch.testing.assert_close(late(inputs), model(inputs))
    assert late.model.num_read == inputs.shape[1]


def test_the_limit_is_made_of_every_dense_product():
    workload = steps.make_workload("fuzzy_logic", "softmax", "float32")
    run = steps.collect_products(workload)
    with steps._Products() as seen:
        run()
    config: Any = default_run("fuzzy_logic")
    layers = 4 * config.model.num_layers + 2  # qkv, output, two of the MLP; embedding and readout
    assert len(seen.operands) == 3 * layers - 1  # forward, gradient of weights and of inputs, but not of the tokens
    tokens = 128 * config.task.sequence_length
    assert max(max(operand.shape) for pair in seen.operands for operand in pair) == tokens


def test_rounds_are_interleaved():
    order: list[str] = []
    times = machine.time_interleaved({name: partial(order.append, name) for name in "ab"}, 0.0, warm_up=1)
    assert order == ["a", "b", *"ab" * machine.MIN_ROUNDS]
    assert [len(each) for each in times.values()] == [machine.MIN_ROUNDS] * 2


def test_the_time_of_batches_is_taken_within_training():
    config = default_run("hyperteacher", "tiny")
    trainer = Trainer(config.build_model(), config.task, config.training, "cpu")
    batch, step = generators.time_training(trainer, seconds=0.0)
    assert 0 < batch < step
    assert trainer.step == (1 + machine.MIN_ROUNDS) * trainer.batches.group_size, "whole groups, one for each round"


def test_one_round_is_enough_if_it_takes_long(monkeypatch):
    monkeypatch.setattr(generators, "LONG", 0.0)
    config = default_run("hyperteacher", "tiny")
    trainer = Trainer(config.build_model(), config.task, config.training, "cpu")
    generators.time_training(trainer, seconds=60.0)
    assert trainer.step == trainer.batches.group_size


@needs_kernel
@pytest.mark.skipif(machine.measure_peak_memory(lambda: None) is None, reason="the system does not tell the peak")
def test_memory_of_the_kernel_grows_with_the_inputs_only(monkeypatch):
    monkeypatch.setattr(growth, "MEMORY_LENGTHS", (512, 1024))
    monkeypatch.setattr(growth, "MOST_PLAIN", 512)
    monkeypatch.setattr(machine, "MIN_ROUNDS", 1)
    rows = growth.benchmark_memory(0.0)
    assert max(row["peak_bytes"]["fused"] / row["projection_bytes"] for row in rows) < 8
    assert rows[0]["peak_bytes"]["eager"] > 7 * rows[0]["peak_bytes"]["fused"]


@needs_kernel
def test_bench_measures_and_draws(small, tmp_path, capsys):
    out = tmp_path / "speed.json"
    arguments = ["bench", "--seconds", "0.01", "--out", str(out), "--charts", str(tmp_path), "--scales", "tiny"]
    assert cli.run(arguments) == 0
    shown = capsys.readouterr().out
    for title in (
        "training steps per second",
        "attention of one layer",
        "against length, forward",
        "with dropout of codes",
    ):
        assert title in shown
    for title in ("growth", "HYLA against length", "batches"):
        assert title in shown
    result = json.loads(out.read_text())
    assert {row["workload"] for row in result["steps"]} == {"fuzzy_logic", "language"}
    row = result["steps"][0]
    assert row["times_plain"] == pytest.approx(row["milliseconds"]["plain"] / row["milliseconds"]["recombine"])
    assert "eager" not in result["memory"][1]["milliseconds"]
    assert [sorted(row["milliseconds"]) for row in result["lengths"]] == [
        ["hyla", "linear", "softmax", "torch"],
        ["linear"],
    ]
    row = result["dropout"][0]
    assert row["times_none"]["pairs"] == pytest.approx(row["milliseconds"]["pairs"] / row["milliseconds"]["none"])
    for part in ("steps", "lengths", "growth", "memory"):
        assert (tmp_path / f"speed_{part}.png").read_bytes()[:4] == b"\x89PNG"
    assert cli.run(["bench", "generators", "--json", "--scales", "tiny", "--seconds", "0.01", "--out", str(out)]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert set(measured) == {"machine", "generators"}
    (row,) = measured["generators"]
    assert (row["task"], row["scale"], row["batches_at_once"]) == ("hyperteacher", "tiny", 16)
    assert 0 < row["share_of_step"] < 1
    assert json.loads(out.read_text())["steps"] == result["steps"]  # parts measured before stay
    assert chart.write_charts({"machine": {}}, tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["everything"],
            "unknown part 'everything': expected one of steps, attention, lengths, dropout, growth, memory",
        ),
        (["--precisions", "int8"], "unknown precision 'int8': expected one of float32, bf16"),
        (["--workloads", "chess"], "unknown workload 'chess': expected one of fuzzy_logic, sraven, language"),
        (["--scales", "huge"], "unknown scale 'huge': expected one of tiny, small, paper"),
        (["--seconds", "0"], "seconds is 0.0: expected a positive number"),
        (["--threads", "0"], "threads is 0: expected a whole number of at least 1"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert cli.run(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_a_kernel_there_is_nothing_to_measure(monkeypatch, capsys):
    monkeypatch.setattr(cpu, "why_unavailable", lambda: "no C compiler on the PATH")
    assert cli.run(["bench", "steps"]) == 2
    assert "there is no fused kernel to measure: no C compiler on the PATH" in capsys.readouterr().err
