"""Attention as training calls it, against length: softmax, linear and HYLA compared with torch's own softmax attention.

Forward and backward of one layer, causal, 8 heads of 64, about the same number of tokens at each length. `times_torch` is the
time divided by that of `scaled_dot_product_attention`. And dropout: whole steps with and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn import functional

from recombine.attention.dispatch import attend
from recombine.attention.layer import ATTENTIONS
from recombine.cli.bench.attention import Shape, make_pass
from recombine.cli.bench.machine import Pass, take_medians, time_interleaved
from recombine.cli.bench.steps import make_workload
from recombine.training.schema import Json

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
LINEAR_ONLY = (8192, 16384)
TOKENS = 4096
NAMES = ("softmax", "linear", "hyla")
DROPOUT, DROPOUT_WORKLOAD = 0.1, "sraven"


def benchmark_lengths(seconds: float, say: Callable[[str], None] = lambda _: None) -> list[Json]:
    """One row per length; beyond 4,096 tokens only linear attention."""
    rows = []
    for length in (*LENGTHS, *LINEAR_ONLY):
        say(f"lengths: {length}")
        shape = Shape(b=max(1, TOKENS // length), q=length, k=length, h=8, d=64, bias=False, causal=True)
        passes = {name: make_pass(shape, partial(_attend, name)) for name in NAMES if _is_wanted(name, length)}
        if length not in LINEAR_ONLY:
            passes["torch"] = make_pass(shape, _attend_as_torch)
        medians = take_medians(time_interleaved(passes, seconds))
        row: Json = {"length": length, "tokens": shape.b * length}
        row["milliseconds"] = {name: 1e3 * value for name, value in medians.items()}
        if "torch" in medians:
            row["times_torch"] = {name: medians[name] / medians["torch"] for name in NAMES}
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


def benchmark_dropout(seconds: float, say: Callable[[str], None] = lambda _: None) -> list[Json]:
    """Steps on SRAVEN without dropout and with both of its forms."""
    rows = []
    for attention in NAMES:
        say(f"dropout: {attention}")
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
