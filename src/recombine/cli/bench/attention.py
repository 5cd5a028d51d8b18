"""One layer's attention, forward and backward: the fused CPU kernel compared with the definition, eager and compiled.

Every variant starts from the same packed projection. GFLOP/s count the products of the definition (3 in the forward and
8 in the backward pass of a hypernetwork, 2 and 5 of a linear value network), for comparison with a measured matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from recombine.attention import definition
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions
from recombine.attention.layer import ATTENTIONS
from recombine.cli.bench.machine import Pass, measure_peak_memory, take_medians, time_interleaved
from recombine.training.schema import Json

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}


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
    "language": Shape(b=8, q=256, k=256, h=8, d=64, bias=False, causal=True),
    "long": Shape(b=4, q=1024, k=1024, h=8, d=64, bias=False),
}


def make_passes(shape: Shape, attention: str, precision: str, *contenders: str) -> dict[str, Pass]:
    """A forward and backward pass of each variant (eager, compiled, fused), on separate leaves with the same values."""
    normalisation, value_network = ATTENTIONS[attention]
    options = AttentionOptions(normalisation, value_network, causal=shape.causal)
    compiled = torch.compile(definition.attend, dynamic=False)
    functions: dict[str, Callable[..., Any]] = {
        "eager": lambda q, k, v, bias: definition.attend(q, k, v, options._replace(bias=bias))[0],
        "compiled": lambda q, k, v, bias: compiled(q, k, v, options._replace(bias=bias))[0],
        "fused": lambda q, k, v, bias: cpu.attend(q, k, v, options._replace(bias=bias)),
    }
    torch.manual_seed(0)
    qkv = torch.randn(shape.b, shape.k, 3 * shape.h * shape.d).to(PRECISIONS[precision])
    bias = torch.randn(shape.h, shape.q, shape.k) if shape.bias else None
    grad_out = torch.randn(shape.b, shape.q, shape.h, shape.d).to(qkv.dtype)
    return {name: _make_pass(functions[name], shape, qkv, bias, grad_out) for name in contenders}


def make_pass(shape: Shape, attend: Callable[..., Any]) -> Pass:
    """A forward and backward pass of `attend(q, k, v)`, without bias."""
    torch.manual_seed(0)
    qkv, grad_out = (
        torch.randn(shape.b, shape.k, 3 * shape.h * shape.d),
        torch.randn(shape.b, shape.q, shape.h, shape.d),
    )
    return _make_pass(lambda *qkv, bias: attend(*qkv), replace(shape, bias=False), qkv, None, grad_out)


def _make_pass(attend: Callable[..., Any], shape: Shape, qkv: Tensor, bias: Tensor | None, grad_out: Tensor) -> Pass:
    leaves = [qkv.clone().requires_grad_()] + ([] if bias is None else [bias.clone().requires_grad_()])

    def run() -> None:
        q, k, v = (part.unflatten(-1, (shape.h, -1)) for part in leaves[0].chunk(3, dim=-1))
        out = attend(q[:, -shape.q :], k, v, bias=leaves[1] if shape.bias else None)
        torch.autograd.grad(out, leaves, grad_out)

    return run


def count_products(shape: Shape, attention: str) -> float:
    """Floating-point operations of a forward and backward pass."""
    products = 3.0 + 8 if ATTENTIONS[attention][1] != "linear" else 2.0 + 5
    return 2 * products * shape.b * shape.q * shape.k * shape.h * shape.d * (0.5 if shape.causal else 1)


def benchmark_attention(
    seconds: float, say: Callable[[str], None] = lambda _: None, precisions: Sequence[str] = tuple(PRECISIONS)
) -> list[Json]:
    """Every shape, attention and precision (the long shape in float32 only). Memory is the rise of the resident peak."""
    rows = []
    for name, attention, precision in product(SHAPES, ("softmax", "linear", "hyla"), precisions):
        if precision == "bf16" and name == "long":
            continue  # the definition takes minutes on CPUs without bf16 instructions
        say(f"attention: {name} {attention} {precision}")
        torch._dynamo.reset()
        shape = SHAPES[name]
        passes = make_passes(shape, attention, precision, "eager", "compiled", "fused")
        times = time_interleaved(passes, seconds, warm_up=1)
        medians = take_medians(times)
        rows.append(
            {
                "shape": name,
                **asdict(shape),
                "attention": attention,
                "precision": precision,
                "rounds": len(times["fused"]),
                "milliseconds": {each: 1e3 * value for each, value in medians.items()},
                "best_milliseconds": {each: 1e3 * min(values) for each, values in times.items()},
                "times_compiled": medians["compiled"] / medians["fused"],
                "times_eager": medians["eager"] / medians["fused"],
                "gflops": count_products(shape, attention) / medians["fused"] / 1e9,
                "peak_bytes": {each: measure_peak_memory(run) for each, run in passes.items()},
            }
        )
    return rows
