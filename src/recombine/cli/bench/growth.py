"""How cost grows: time of attention with length, heads, width and batch, of a step with depth; memory with length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from recombine.cli.bench.attention import Shape, make_passes
from recombine.cli.bench.machine import Pass, measure_peak_memory, take_medians, time_interleaved
from recombine.cli.bench.steps import ATTENTIONS, make_workload
from recombine.training.schema import Json

BASE = Shape(b=64, q=36, k=36, h=16, d=4)  # about SRAVEN's
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
LONG = Shape(b=1, q=256, k=256, h=8, d=64, bias=False)
MEMORY_LENGTHS = (256, 512, 1024, 2048, 4096)
MOST_PLAIN = 1024  # for longer sequences the definition of HYLA needs more memory than most machines have

CURVES: dict[str, tuple[tuple[int, ...], Callable[[int], Shape]]] = {
    "length": (LENGTHS, lambda n: replace(BASE, b=max(1, 64 * 36 // n), q=n, k=n)),
    "heads": ((2, 4, 8, 16, 32), lambda n: replace(BASE, h=n)),
    "width of a head": ((2, 4, 8, 16, 32, 64), lambda n: replace(BASE, d=n)),
    "batch": ((8, 16, 32, 64, 128, 256), lambda n: replace(BASE, b=n)),
}
DEPTHS = (1, 2, 4, 8)


def benchmark_growth(seconds: float, say: Callable[[str], None] = lambda _: None) -> list[Json]:
    """One row per curve, attention and size: milliseconds of the fused pass, or of a whole step for depth."""
    rows = []
    for axis, (sizes, shape_of) in CURVES.items():
        for size in sizes:
            say(f"growth: {axis} {size}")
            shape = shape_of(size)
            passes = {name: make_passes(shape, name, "float32", "fused")["fused"] for name in ATTENTIONS}
            rows += _rows(axis, size, passes, seconds / 2, tokens=shape.b * shape.q)
    for depth in DEPTHS:
        say(f"growth: depth {depth}")
        rows += _rows("depth", depth, {name: _make_step(name, depth) for name in ATTENTIONS}, seconds)
    return rows


def _make_step(attention: str, depth: int) -> Pass:
    workload = make_workload("sraven", attention, "float32", num_layers=depth)
    model = workload.make_model()
    return workload.make_step(model, model)


def _rows(axis: str, size: int, passes: dict[str, Pass], seconds: float, **more: Any) -> list[Json]:
    medians = take_medians(time_interleaved(passes, seconds))
    return [
        {"axis": axis, "size": size, "attention": name, "milliseconds": 1e3 * value, **more}
        for name, value in medians.items()
    ]


def benchmark_memory(seconds: float, say: Callable[[str], None] = lambda _: None) -> list[Json]:
    """Peak bytes of HYLA's forward and backward pass against length, and the bytes of its inputs and outputs."""
    rows = []
    for length in MEMORY_LENGTHS:
        say(f"memory: length {length}")
        shape = replace(LONG, q=length, k=length)
        contenders = ("eager", "fused") if length <= MOST_PLAIN else ("fused",)
        passes = make_passes(shape, "hyla", "float32", *contenders)
        times = take_medians(time_interleaved(passes, seconds, warm_up=1))
        rows.append(
            {
                "length": length,
                "heads": shape.h,
                "width": shape.d,
                "peak_bytes": {name: measure_peak_memory(run) for name, run in passes.items()},
                "projection_bytes": 4 * 3 * length * shape.h * shape.d,
                "milliseconds": {name: 1e3 * value for name, value in times.items()},
            }
        )
    return rows
