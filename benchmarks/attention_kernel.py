"""How fast the fused CPU kernel is, beside the plain definition, eager and under `torch.compile`.

    python benchmarks/attention_kernel.py [--json FILE] [--shapes sraven,fuzzy_logic,...] [--seconds 3] [--threads N]

Every contender computes the same forward and backward pass from the same packed projection. Rounds alternate between the
contenders in one process, so that whatever else the machine does falls on all of them; times are medians over the rounds,
and the ratio that counts is to the compiled definition. GFLOP/s count the products of the definition (3 in the forward and
5 more in the backward pass of a hypernetwork, 2 and 3 of a linear value network) and stand beside a measured matrix product.
Memory is the rise of the resident peak during one pass.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from recombine.kernels import cpu, reference


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one layer's attention."""

    b: int
    q: int
    k: int
    h: int
    d: int
    bias: bool = True
    causal: bool = False


SHAPES = {
    "fuzzy_logic": Shape(b=128, q=32, k=32, h=8, d=2),
    "sraven": Shape(b=128, q=36, k=36, h=16, d=4),
    "sraven_last_block": Shape(b=128, q=4, k=36, h=16, d=4),
    "language": Shape(b=8, q=256, k=256, h=8, d=64, bias=False, causal=True),
    "long": Shape(b=4, q=1024, k=1024, h=8, d=64, bias=False),
}
ATTENTIONS = {"softmax": ("softmax", "linear"), "linear": ("none", "linear"), "hyla": ("rms_head", "hyper_relu")}
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
Pass = Callable[[], None]


def make_passes(shape: Shape, attention: str, precision: str) -> dict[str, Pass]:
    """A forward and backward pass of each contender, on its own leaves with the same numbers."""
    normalisation, value_network = ATTENTIONS[attention]
    choice = {"normalisation": normalisation, "value_network": value_network, "causal": shape.causal}
    compiled = torch.compile(reference.attend, dynamic=False)
    contenders = {
        "eager": lambda *qkv, bias: reference.attend(*qkv, bias=bias, **choice)[0],
        "compiled": lambda *qkv, bias: compiled(*qkv, bias=bias, **choice)[0],
        "fused": lambda *qkv, bias: cpu.attend(*qkv, bias=bias, **choice),
    }
    torch.manual_seed(0)
    qkv = torch.randn(shape.b, shape.k, 3 * shape.h * shape.d).to(PRECISIONS[precision])
    bias = torch.randn(shape.h, shape.q, shape.k) if shape.bias else None
    grad_out = torch.randn(shape.b, shape.q, shape.h, shape.d).to(qkv.dtype)
    return {name: make_pass(attend, shape, qkv, bias, grad_out) for name, attend in contenders.items()}


def make_pass(attend: Callable, shape: Shape, qkv: Tensor, bias: Tensor | None, grad_out: Tensor) -> Pass:
    leaves = [qkv.clone().requires_grad_()] + ([] if bias is None else [bias.clone().requires_grad_()])

    def run() -> None:
        q, k, v = (part.unflatten(-1, (shape.h, -1)) for part in leaves[0].chunk(3, dim=-1))
        out = attend(q[:, -shape.q :], k, v, bias=leaves[1] if shape.bias else None)
        torch.autograd.grad(out, leaves, grad_out)

    return run


def time_interleaved(passes: dict[str, Pass], seconds: float) -> dict[str, list[float]]:
    """Seconds of each round: contenders take turns, each for about a third of a round, until the time is up."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        run()
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["fused"]) < 3:
        for name, run in passes.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def count_products(shape: Shape, attention: str) -> float:
    """Floating-point operations of a forward and backward pass."""
    products = 8 + 3 if ATTENTIONS[attention][1] != "linear" else 5 + 2
    return 2 * products * shape.b * shape.q * shape.k * shape.h * shape.d * (0.5 if shape.causal else 1)


def measure_peak_memory(run: Pass) -> int | None:
    """Bytes by which the resident peak rises during a pass; None where the system does not say."""
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


def measure_matmul_peak() -> float:
    """GFLOP/s of the best of a few large float32 matrix products."""
    a = torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best / 1e9


def name_cpu() -> str:
    """Model of the CPU, with the widest vectors torch uses on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def benchmark(shape_name: str, attention: str, precision: str, seconds: float) -> dict:
    """Medians, ratios and memory of one case."""
    torch._dynamo.reset()
    shape = SHAPES[shape_name]
    passes = make_passes(shape, attention, precision)
    times = time_interleaved(passes, seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "shape": shape_name,
        **asdict(shape),
        "attention": attention,
        "precision": precision,
        "rounds": len(times["fused"]),
        "milliseconds": {name: 1e3 * value for name, value in medians.items()},
        "best_milliseconds": {name: 1e3 * min(values) for name, values in times.items()},
        "times_compiled": medians["compiled"] / medians["fused"],
        "times_eager": medians["eager"] / medians["fused"],
        "gflops": count_products(shape, attention) / medians["fused"] / 1e9,
        "peak_bytes": {name: measure_peak_memory(run) for name, run in passes.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--shapes", default=",".join(SHAPES), help=f"some of {', '.join(SHAPES)}")
    parser.add_argument("--attentions", default=",".join(ATTENTIONS), help=f"some of {', '.join(ATTENTIONS)}")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help=f"some of {', '.join(PRECISIONS)}")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if (reason := cpu.why_unavailable()) is not None:
        raise SystemExit(f"nothing to measure: {reason}")
    peak = measure_matmul_peak()
    print(f"{name_cpu()}; {options.threads} threads; torch {torch.__version__}; matrix product {peak:.0f} GFLOP/s")
    print(f"{'milliseconds':37} {'eager':>8} {'compiled':>9} {'fused':>9} {'x compiled':>11} GFLOP/s  memory x")
    results = []
    for shape_name in options.shapes.split(","):
        for attention in options.attentions.split(","):
            for precision in options.precisions.split(","):
                row = benchmark(shape_name, attention, precision, options.seconds)
                results.append(row)
                ms, memory = row["milliseconds"], row["peak_bytes"]
                # below that the allocator's own steps decide
                saved = f"{memory['compiled'] / memory['fused']:.1f}" if (memory["fused"] or 0) > 1 << 23 else "-"
                print(
                    f"{shape_name:18} {attention:9} {precision:8} {ms['eager']:8.2f} {ms['compiled']:9.2f} {ms['fused']:9.2f}"
                    f" {row['times_compiled']:11.2f} {row['gflops']:7.1f} {saved:>9}",
                    flush=True,
                )
    if options.json is not None:
        machine = {"cpu": name_cpu(), "threads": options.threads, "torch": torch.__version__, "matmul_gflops": peak}
        options.json.write_text(json.dumps({**machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
