"""How the cost of attention grows.

    python benchmarks/growth.py [lengths dropout growth memory] [--seconds S] [--out FILE]

    lengths   one causal layer with 8 heads of 64 as training calls it, softmax, linear and HYLA, next to torch's own softmax
              attention (`times_torch` is the time divided by it), about the same number of tokens at each length
    dropout   whole steps on SRAVEN without dropout of codes and with its two forms
    growth    time of attention with length, heads, width and batch, and of a step with depth
    memory    peak memory of HYLA against length, in addition to the inputs

Times are medians of interleaved rounds, in milliseconds. Prints JSON, or writes it to a file that may hold other parts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from recombine.attention.dispatch import attend
from recombine.attention.layer import ATTENTIONS
from recombine.cli import bench
from recombine.cli.bench import (
    ATTENTION_NAMES,
    Pass,
    Shape,
    make_pass,
    make_passes,
    make_workload,
    take_medians,
    time_interleaved,
)
from recombine.training.schema import Json

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
LINEAR_ONLY = (8192, 16384)
TOKENS = 4096
DROPOUT, DROPOUT_WORKLOAD = 0.1, "sraven"


def benchmark_lengths(seconds: float) -> list[Json]:
    """One row per length; beyond 4,096 tokens only linear attention."""
    rows = []
    for length in (*LENGTHS, *LINEAR_ONLY):
        print(f"lengths: {length}", file=sys.stderr)
        shape = Shape(b=max(1, TOKENS // length), q=length, k=length, h=8, d=64, bias=False, causal=True)
        passes = {
            name: _make_pass_without_bias(shape, partial(_attend, name))
            for name in ATTENTION_NAMES
            if _is_wanted(name, length)
        }
        if length not in LINEAR_ONLY:
            passes["torch"] = _make_pass_without_bias(shape, _attend_as_torch)
        medians = take_medians(time_interleaved(passes, seconds))
        row: Json = {"length": length, "tokens": shape.b * length}
        row["milliseconds"] = {name: 1e3 * value for name, value in medians.items()}
        if "torch" in medians:
            row["times_torch"] = {name: medians[name] / medians["torch"] for name in ATTENTION_NAMES}
        rows.append(row)
    return rows


def _is_wanted(name: str, length: int) -> bool:
    return name == "linear" or length not in LINEAR_ONLY


def _attend(name: str, q: Any, k: Any, v: Any) -> Any:
    normalisation, value_network = ATTENTIONS[name]
    choice: Any = {"normalisation": normalisation, "value_network": value_network}
    return attend(q, k, v, causal=True, return_codes=False, **choice)[0]


def _attend_as_torch(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def benchmark_dropout(seconds: float) -> list[Json]:
    """Steps on SRAVEN without dropout and with both of its forms."""
    rows = []
    for attention in ATTENTION_NAMES:
        print(f"dropout: {attention}", file=sys.stderr)
        passes: dict[str, Pass] = {}
        for form in ("none", "pairs", "elements"):
            change = {} if form == "none" else {"attention_dropout": DROPOUT, "attention_dropout_form": form}
            workload = make_workload(DROPOUT_WORKLOAD, attention, "float32", **change)
            model = workload.make_model()
            passes[form] = workload.make_step(model, model)
        medians = take_medians(time_interleaved(passes, seconds))
        rows.append(
            {
                "attention": attention,
                "milliseconds": {form: 1e3 * value for form, value in medians.items()},
                "times_none": {form: medians[form] / medians["none"] for form in ("pairs", "elements")},
            }
        )
    return rows


def _make_pass_without_bias(shape: Shape, attend: Callable[..., Any]) -> Pass:
    """A forward and backward pass of `attend(q, k, v)`, without bias."""
    torch.manual_seed(0)
    qkv, grad_out = (
        torch.randn(shape.b, shape.k, 3 * shape.h * shape.d),
        torch.randn(shape.b, shape.q, shape.h, shape.d),
    )
    return make_pass(lambda *qkv, bias: attend(*qkv), replace(shape, bias=False), qkv, None, grad_out)


BASE = Shape(b=64, q=36, k=36, h=16, d=4)  # about SRAVEN's
CURVE_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
LONG = Shape(b=1, q=256, k=256, h=8, d=64, bias=False)
MEMORY_LENGTHS = (256, 512, 1024, 2048, 4096)
MOST_PLAIN = 1024  # for longer sequences the definition of HYLA needs more memory than most machines have

CURVES: dict[str, tuple[tuple[int, ...], Callable[[int], Shape]]] = {
    "length": (CURVE_LENGTHS, lambda n: replace(BASE, b=max(1, 64 * 36 // n), q=n, k=n)),
    "heads": ((2, 4, 8, 16, 32), lambda n: replace(BASE, h=n)),
    "width of a head": ((2, 4, 8, 16, 32, 64), lambda n: replace(BASE, d=n)),
    "batch": ((8, 16, 32, 64, 128, 256), lambda n: replace(BASE, b=n)),
}
DEPTHS = (1, 2, 4, 8)


def benchmark_growth(seconds: float) -> list[Json]:
    """One row per curve, attention and size: milliseconds of the fused pass, or of a whole step for depth."""
    rows = []
    for axis, (sizes, shape_of) in CURVES.items():
        for size in sizes:
            print(f"growth: {axis} {size}", file=sys.stderr)
            shape = shape_of(size)
            passes = {name: make_passes(shape, name, "float32", "fused")["fused"] for name in ATTENTION_NAMES}
            rows += _rows(axis, size, passes, seconds / 2, tokens=shape.b * shape.q)
    for depth in DEPTHS:
        print(f"growth: depth {depth}", file=sys.stderr)
        rows += _rows("depth", depth, {name: _make_step(name, depth) for name in ATTENTION_NAMES}, seconds)
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


def benchmark_memory(seconds: float) -> list[Json]:
    """Peak bytes of HYLA's forward and backward pass against length, and the bytes of its inputs and outputs."""
    rows = []
    for length in MEMORY_LENGTHS:
        print(f"memory: length {length}", file=sys.stderr)
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


def measure_peak_memory(run: Pass) -> int | None:
    """Bytes by which the resident peak rises during a pass; None if the system does not report it."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_status("VmRSS")
    run()
    return _read_status("VmHWM") - before


def _read_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


PARTS = {
    "lengths": benchmark_lengths,
    "dropout": benchmark_dropout,
    "growth": benchmark_growth,
    "memory": benchmark_memory,
}


def write(result: Json, path: Path | None) -> None:
    """Print the parts of a result, or add them to a file."""
    if path is None:
        print(json.dumps(result, indent=1))
        return
    earlier = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(earlier | result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case")
    parser.add_argument("--out", type=Path, help="JSON file, whose other parts are kept")
    options = parser.parse_args()
    result = {"machine": bench.describe_machine()} | {part: PARTS[part](options.seconds) for part in options.parts}
    write(result, options.out)


if __name__ == "__main__":
    main()
