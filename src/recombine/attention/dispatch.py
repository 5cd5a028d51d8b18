"""The one door to the kernels: layers call `attend`, `dense`, `linear_gelu`, `add_norm` from here, never a kernel directly.

`reference.py` is the definition. `cpu.py` computes the same in fused C wherever it can: float32 or bf16 on a CPU, codes not
asked for. Long sequences may take a shorter way: linear attention in linear time (`linear.py`), softmax by torch's own
function (`sdpa.py`), each where it `pays`. Everything else, and every machine without a C compiler, takes the reference path,
or for long sequences `chunked`, plain PyTorch in memory linear in the length; that is said once in the log
`recombine.attention.dispatch`. The choice can be forced with the argument `kernel`, for a while with `use_kernel`, or for a process
with the environment variable RECOMBINE_KERNEL. One more is taken only by that: `triton`, for GPUs, checked against the
definition in Triton's interpreter but never yet run on a GPU.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from recombine.attention import chunked, linear, sdpa, triton
from recombine.attention import definition as reference
from recombine.attention.checks import check_linear, check_norm, open_door
from recombine.attention.cpu import attention as cpu
from recombine.attention.cpu import gelu, norm, onednn
from recombine.attention.definition import CodeMap, Normalisation, ValueNetwork
from recombine.attention.dropout import Dropout, move_to_start
from recombine.foundation.errors import check_choice
from recombine.foundation.native import constant_in_graphs

Kernel = Literal["auto", "reference", "cpu", "triton", "chunked", "linear", "sdpa"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)  # once: compilers of old versions of torch cannot follow get_args

_log = logging.getLogger(__name__)
_chosen: str = os.environ.get("RECOMBINE_KERNEL", "auto")


@contextlib.contextmanager
def use_kernel(kernel: Kernel) -> Iterator[None]:
    """Take this kernel where none is named, inside a `with` block."""
    global _chosen
    before, _chosen = _chosen, check_choice("kernel", kernel, KERNELS)
    try:
        yield
    finally:
        _chosen = before


def attend(
    q: Float[Tensor, "#b q #h d"],
    k: Float[Tensor, "#b k #h d"],
    v: Float[Tensor, "#b k #h e"],
    *,
    normalisation: Normalisation,
    value_network: ValueNetwork,
    bias: Float[Tensor, "*#pairs"] | None = None,
    mask: Bool[Tensor, "*#pairs"] | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
    deep_weight: Float[Tensor, "h e e"] | None = None,
    code_map: CodeMap | None = None,
    return_codes: bool = True,
    kernel: Kernel | None = None,
) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"] | None]:
    """What `reference.attend` defines, by the fastest path there is; codes only if they are asked for."""
    choice = check_choice("kernel", _chosen if kernel is None else kernel, KERNELS)
    q, k, v = open_door(q, k, v, bias=bias, mask=mask, dropout=dropout, deep_weight=deep_weight)
    if dropout is not None:
        dropout = move_to_start(dropout, q.shape[2], q.shape[1], k.shape[1])
    options: dict[str, Any] = {
        "normalisation": normalisation,
        "value_network": value_network,
        "bias": bias,
        "mask": mask,
        "causal": causal,
        "dropout": dropout,
        "deep_weight": deep_weight,
    }
    # only the definition has codes to show or to change
    needs_codes = return_codes or code_map is not None
    fast = None if needs_codes else _choose_kernel(choice, q, k, v, options)
    if fast is not None:
        return fast.attend(q, k, v, **options), None
    out, codes = reference.attend(q, k, v, code_map=code_map, **options)
    return out, codes if return_codes else None


def _choose_kernel(choice: str, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> ModuleType | None:
    """The kernel that takes a call without codes; None for the definition."""
    if choice == "reference" or _is_transformed():
        return None
    if choice == "chunked":
        return chunked
    forced: dict[str, ModuleType] = {"triton": triton, "linear": linear, "sdpa": sdpa}
    if choice in forced:
        return forced[choice] if forced[choice].supports(q, k, v, **options) else None
    for shorter in (linear, sdpa) if choice == "auto" else ():
        if shorter.supports(q, k, v, **options) and shorter.pays(q, k, causal=options["causal"]):
            return shorter
    if cpu.supports(q, k, v, **options) and (choice == "cpu" or _cpu_kernel_is_available()):
        return cpu
    return chunked if choice == "auto" and _is_long(q, k) else None


def dense(
    x: Float[Tensor, "*batch input"],
    weight: Float[Tensor, "output input"],
    bias: Float[Tensor, " output"] | None = None,
) -> Float[Tensor, "*batch output"]:
    """`x W^T + b`."""
    if torch.compiler.is_compiling() or _chosen not in ("auto", "cpu") or _is_transformed():
        return functional.linear(x, weight, bias)
    if onednn.supports(x, weight, bias) and onednn.pays(x, weight):
        check_linear(x, weight, bias)
        return onednn.dense(x, weight, bias)
    return functional.linear(x, weight, bias)


def linear_gelu(
    x: Float[Tensor, "*batch input"], weight: Float[Tensor, "output input"], bias: Float[Tensor, " output"]
) -> Float[Tensor, "*batch output"]:
    """`gelu(x W^T + b)` in GELU's tanh form."""
    check_linear(x, weight, bias)
    if torch.compiler.is_compiling() and _chosen != "reference":
        hidden = functional.linear(x, weight, bias)
        # the same function, but the compiler's exponential is much faster than its tanh
        return hidden * torch.sigmoid(1.5957691216057308 * hidden * (1 + 0.044715 * hidden.square()))
    if _chosen in ("auto", "cpu") and not _is_transformed() and gelu.supports(x, bias):
        return gelu.add_gelu(dense(x, weight), bias)
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def add_norm(
    residual: Float[Tensor, "*batch width"],
    update: Float[Tensor, "*batch width"] | None,
    weight: Float[Tensor, " width"],
    bias: Float[Tensor, " width"],
    eps: float,
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    """`residual + update` (the residual itself without an update), and its LayerNorm."""
    check_norm(residual, update, weight, bias)
    fused = _chosen in ("auto", "cpu") and not torch.compiler.is_compiling() and not _is_transformed()
    if fused and norm.supports(residual, update, weight, bias):
        return norm.add_norm(residual, update, weight, bias, eps)
    total = residual if update is None else residual + update
    return total, functional.layer_norm(total, weight.shape, weight, bias, eps)


def _is_transformed() -> bool:
    """Whether `torch.func` or `torch.jit.trace` is at work, which see through no kernel."""
    return torch._C._are_functorch_transforms_active() or torch.jit._trace.is_tracing()


def _is_long(q: Tensor, k: Tensor) -> bool:
    """Whether the scores of the plain definition alone would take a quarter of a gigabyte."""
    b, num_queries, h, _ = q.shape
    return b * h * num_queries * k.shape[1] > 1 << 26


@constant_in_graphs
def _cpu_kernel_is_available() -> bool:
    if cpu.is_available():
        _say_once("attention takes the fused CPU kernel", logging.INFO)
    else:
        _say_once(f"attention takes the reference path: {cpu.why_unavailable()}", logging.WARNING)
    return cpu.is_available()


_said: set[str] = set()


def _say_once(message: str, level: int) -> None:
    if message not in _said:
        _said.add(message)
        _log.log(level, message)
