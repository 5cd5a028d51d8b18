"""`recombine bench`: the contenders compute the same, rounds are interleaved, and the results are printed."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from recombine.attention.cpu import kernels as cpu
from recombine.cli import bench
from recombine.cli.main import run as run_verb
from recombine.training.config import default_run

needs_kernel = pytest.mark.skipif(not cpu.is_available(), reason=f"no kernel: {cpu.why_unavailable()}")


@pytest.fixture
def small(monkeypatch):
    """Everything that is measured, in sizes of a test, and without the seconds that compilation takes."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(bench, "default_run", partial(default_run, scale="tiny"))
    monkeypatch.setattr(bench, "LANGUAGE", replace(bench.LANGUAGE, num_layers=1, embedding_dim=16, kqv_dim=16))
    monkeypatch.setattr(bench, "LANGUAGE_TOKENS", 8)
    monkeypatch.setattr(bench, "SHAPES", {"small": bench.Shape(b=2, q=3, k=5, h=2, d=2)})
    monkeypatch.setattr(bench, "MIN_ROUNDS", 1)


def test_reading_late_is_the_same_model():
    workload = bench.make_workload("fuzzy_logic", "hyla", "float32")
    model, late = workload.make_model(), bench.ReadLate(workload.make_model())
    inputs = default_run("fuzzy_logic").task.sample("train", 0, batch_size=4).inputs
    torch.testing.assert_close(late(inputs), model(inputs))
    assert late.model.num_read == inputs.shape[1]


def test_rounds_are_interleaved():
    order: list[str] = []
    times = bench.time_interleaved({name: partial(order.append, name) for name in "ab"}, 0.0, warm_up=1)
    assert order == ["a", "b", *"ab" * bench.MIN_ROUNDS]
    assert [len(rounds) for rounds in times.values()] == [bench.MIN_ROUNDS] * 2


@needs_kernel
def test_bench_measures(small, capsys):
    flags = ["--seconds", "0.01", "--workloads", "fuzzy_logic", "language"]
    assert run_verb(["bench", *flags]) == 0
    shown = capsys.readouterr().out
    assert "training steps per second" in shown
    assert "pass of one layer's attention" in shown
    assert run_verb(["bench", "steps", "--json", *flags, "--precisions", "float32"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"machine", "steps"}
    assert {row["workload"] for row in result["steps"]} == {"fuzzy_logic", "language"}
    assert {row["precision"] for row in result["steps"]} == {"float32"}
    row = result["steps"][0]
    assert row["times_plain"] == pytest.approx(row["milliseconds"]["plain"] / row["milliseconds"]["recombine"])
    assert row["steps_per_second"]["plain"] == pytest.approx(1e3 / row["milliseconds"]["plain"])
    assert 0 < row["share_of_peak"] < 1


@needs_kernel
def test_the_peak_is_that_of_the_processor():
    assert bench.measure_peak() > 2 * 512**3 / 1e9 / min(times_of_a_product(512))


def times_of_a_product(size):
    a = torch.randn(size, size)
    return bench.time_interleaved({"product": lambda: a @ a}, 0.1)["product"]


@needs_kernel
def test_operations_are_those_of_the_products():
    workload = bench.make_workload("sraven", "softmax", "float32")
    model, task = workload.make_model(), default_run("sraven", "paper").task
    rows = 128 * task.sequence_length
    widths = [
        (layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, torch.nn.Linear)
    ]
    most = sum(6 * rows * fan_in * fan_out for fan_in, fan_out in widths)
    assert 0.6 * most < bench.count_operations(workload) < 1.3 * most


def test_without_a_kernel_there_is_nothing_to_measure(monkeypatch, capsys):
    monkeypatch.setattr(cpu, "why_unavailable", lambda: "no C compiler on the PATH")
    assert run_verb(["bench", "steps"]) == 2
    assert "there is no fused kernel to measure: no C compiler on the PATH" in capsys.readouterr().err
