"""Kernel dispatch: layers call `attend`, `dense`, `linear_gelu` and `add_norm` here, never a kernel directly.

Arguments are checked and broadcast here, once for all kernels. Then, for attention without codes,

    linear       `linear.py`, in linear time: no normalisation, where the sequence is long enough
    sdpa         torch's `scaled_dot_product_attention`: softmax in float32 without bias, mask and dropout, where it is faster
    cpu          `cpu/kernels.py`, fused C: float32 or bf16 on a CPU; `cpu/deep.py`, the same for hyper_deep in float32
    chunked      `definition.attend_in_chunks`, in memory linear in the length: long sequences without a fused kernel
    reference    `definition.attend`: everything else, all calls that need codes, and machines without a C compiler
    triton       `triton.py`, for GPUs: checked against the definition in Triton's interpreter, never chosen automatically

The rules depend on shapes and on the kind of processor only (measured by `benchmarks/kernel_choice.py`), never on a timing at
run time, so that a resumed run computes the same bits. `use_kernel` forces a kernel inside a `with` block, the environment
variable RECOMBINE_KERNEL for a process: `reference`, `cpu` (never the shorter ways `linear` and `sdpa`), `chunked` or `triton`.
The choice is logged once.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from recombine.attention import definition, linear, triton
from recombine.attention.cpu import deep
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import (
    DROPOUT_FORMS,
    NORMALISATIONS,
    VALUE_NETWORKS,
    AttentionOptions,
    CodeMap,
    Dropout,
    Normalisation,
    ValueNetwork,
)
from recombine.foundation.errors import InputError, check_choice
from recombine.foundation.native import constant_in_graphs, is_amd_with_avx512

Kernel = Literal["auto", "reference", "cpu", "triton", "chunked"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)  # once: compilers of old versions of torch cannot follow get_args
DIMENSIONS = {"q": "(b, q, h, d)", "k": "(b, k, h, d)", "v": "(b, k, h, e)"}

HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
MIN_SDPA_LENGTH_TIMES_WIDTH = 8192 if HAS_AVX512 else 16384
"""Length times head width (at most 64) from which torch's softmax attention is faster; if not causal, half of it."""
WIDE_HEAD = 128
"""Head width from which it is faster on CPUs with AVX-512, for long sequences."""
LONG_SCORES = 1 << 26
"""Number of scores above which the definition is computed in chunks: a quarter of a gigabyte."""

_log = logging.getLogger(__name__)
_chosen: str = os.environ.get("RECOMBINE_KERNEL", "auto")
_logged: set[str | None] = set()


@contextlib.contextmanager
def use_kernel(kernel: Kernel) -> Iterator[None]:
    """Use this kernel inside a `with` block, for the calls that it supports."""
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
) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"] | None]:
    """What each head of each query receives, by the fastest kernel, and the latent codes if `return_codes`.

    Batch and heads of q, k and v broadcast: a size of 1 is shared. For the options see `AttentionOptions`. `code_map` changes
    the codes before they are used, for causal interventions such as zeroing a head or swapping the codes of two queries.
    """
    options = AttentionOptions(normalisation, value_network, bias, mask, causal, dropout, deep_weight)
    kernel = check_choice("kernel", _chosen, KERNELS)
    q, k, v = check_and_broadcast(q, k, v, options)
    if dropout is not None:
        moved = definition.move_to_first_row(dropout, q.shape[2], q.shape[1], k.shape[1])
        options = options._replace(dropout=moved)
    needs_codes = return_codes or code_map is not None
    fast = None if needs_codes else _choose_kernel(kernel, q, k, v, options)
    if fast is not None:
        return fast(q, k, v, options), None
    out, codes = definition.attend(q, k, v, options, code_map)
    return out, codes if return_codes else None


def _choose_kernel(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
) -> Callable[[Tensor, Tensor, Tensor, AttentionOptions], Tensor] | None:
    """The function for a call without codes; None for the definition."""
    if kernel == "reference" or _is_transformed():
        return None
    if kernel == "triton":
        return triton.attend if triton.supports(q, k, v, options) else None
    if kernel == "chunked":
        return definition.attend_in_chunks
    if kernel == "auto" and supports_linear(q, k, v, options) and linear_is_faster(q, k, causal=options.causal):
        return linear.attend
    if kernel == "auto" and supports_sdpa(q, k, v, options) and sdpa_is_faster(q, k, causal=options.causal):
        return attend_sdpa
    if kernel in ("auto", "cpu") and cpu.supports(q, k, v, options):
        if _cpu_kernel_is_available():
            return cpu.attend
        if kernel == "cpu":
            raise InputError(f"the CPU kernel is not available: {cpu.why_unavailable()}")
    if kernel in ("auto", "cpu") and deep.supports(q, k, v, options):
        return deep.attend
    is_long = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[1] > LONG_SCORES
    return definition.attend_in_chunks if kernel == "auto" and is_long else None


def supports_linear(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether the output is linear in a sum over keys."""
    return (
        options.normalisation == "none"
        and options.value_network in linear.VALUE_NETWORKS
        and options.bias is None
        and (options.mask is None or definition.is_key_mask(options.mask))
        and options.dropout is None
        and q.dtype == k.dtype == v.dtype
    )


def linear_is_faster(q: Tensor, k: Tensor, *, causal: bool) -> bool:
    """Whether linear attention in linear time is faster than the fused kernel."""
    length, width = min(q.shape[1], k.shape[1]), q.shape[3]
    if not causal:
        return length >= 128
    return length * min(width, 32) >= 16384 if is_amd_with_avx512() else length * min(width, 16) >= 4096


def supports_sdpa(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether torch's function computes this, without a tensor of queries x keys.

    Its fast kernels have no gradient for a bias, its rows without keys are NaN, and its dropout is not reproducible. Its
    `is_causal` aligns queries at the start, ours at the end, so there must be as many queries as keys.
    """
    dtypes = (torch.float32,) if q.device.type == "cpu" else (torch.float32, torch.bfloat16, torch.float16)
    return (
        options.normalisation == "softmax"
        and options.value_network == "linear"
        and options.bias is None
        and options.mask is None
        and options.dropout is None
        and q.dtype in dtypes
        and q.dtype == k.dtype == v.dtype
        and q.shape[3] == v.shape[3]
        and (not options.causal or q.shape[1] == k.shape[1])
        and q.numel() > 0
        and k.numel() > 0
    )


def sdpa_is_faster(q: Tensor, k: Tensor, *, causal: bool) -> bool:
    """Whether torch's function is faster than the fused kernel."""
    if q.device.type != "cpu" or not cpu.is_available():
        return True
    length, width = min(q.shape[1], k.shape[1]), q.shape[3]
    if is_amd_with_avx512():
        return width >= WIDE_HEAD and length >= (4096 if causal else 256)
    if HAS_AVX512 and causal:  # measured on Intel's Cascade Lake
        return width >= 32 and length >= (1024 if width >= WIDE_HEAD else 2048)
    return width >= 16 and length * min(width, 64) * (1 if causal else 2) >= MIN_SDPA_LENGTH_TIMES_WIDTH


def attend_sdpa(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h d"], options: AttentionOptions
) -> Float[Tensor, "b q h d"]:
    """Softmax attention by torch's `scaled_dot_product_attention`."""
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if q.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _Sdpa.apply(
                *(x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v)), options.causal
            ).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=options.causal).transpose(1, 2)


class _Sdpa(torch.autograd.Function):
    """The same on a CPU, with second derivatives."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        out, statistics = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        ctx.save_for_backward(q, k, v, out, statistics)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx, grad_out):
        *inputs, out, statistics = ctx.saved_tensors
        if torch.is_grad_enabled():
            options = AttentionOptions("softmax", "linear", causal=ctx.causal)
            q, k, v, grad_out = (x.transpose(1, 2) for x in (*inputs, grad_out))
            grads = definition.differentiate_attention(q, k, v, None, options, grad_out)[:3]
            return *(grad if grad is None else grad.transpose(1, 2) for grad in grads), None
        differentiate = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return *differentiate(grad_out, *inputs, out, statistics, 0.0, ctx.causal), None


def dense(
    x: Float[Tensor, "*batch input"],
    weight: Float[Tensor, "output input"],
    bias: Float[Tensor, " output"] | None = None,
) -> Float[Tensor, "*batch output"]:
    """`x W^T + b`."""
    if not may_fuse() or not (cpu.supports_dense(x, weight, bias) and cpu.dense_is_faster(x, weight)):
        return functional.linear(x, weight, bias)
    check_linear(x, weight, bias)
    return cpu.dense(x, weight, bias)


def linear_gelu(
    x: Float[Tensor, "*batch input"], weight: Float[Tensor, "output input"], bias: Float[Tensor, " output"]
) -> Float[Tensor, "*batch output"]:
    """`gelu(x W^T + b)` in GELU's tanh form."""
    check_linear(x, weight, bias)
    if torch.compiler.is_compiling() and _chosen != "reference":
        hidden = functional.linear(x, weight, bias)
        # the same function, but the compiler's exponential is much faster than its tanh
        return hidden * torch.sigmoid(1.5957691216057308 * hidden * (1 + 0.044715 * hidden.square()))
    if may_fuse() and cpu.supports_gelu(x, bias):
        return cpu.add_gelu(dense(x, weight), bias)
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def add_norm(
    residual: Float[Tensor, "*batch width"],
    update: Float[Tensor, "*batch width"] | None,
    weight: Float[Tensor, " width"],
    bias: Float[Tensor, " width"],
    eps: float,
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    """`residual + update` (the residual itself without an update), and its LayerNorm."""
    if update is not None and update.shape != residual.shape:
        raise InputError(
            f"the update has shape {tuple(update.shape)}: expected the residual's, {tuple(residual.shape)}"
        )
    if residual.dim() == 0 or not weight.shape == bias.shape == residual.shape[-1:]:
        raise InputError(
            f"weight and bias have shapes {tuple(weight.shape)} and {tuple(bias.shape)}: "
            f"expected {tuple(residual.shape[-1:])}, one number per feature"
        )
    if may_fuse() and cpu.supports_norm(residual, update, weight, bias):
        return cpu.add_norm(residual, update, weight, bias, eps)
    total = residual if update is None else residual + update
    return total, functional.layer_norm(total, weight.shape, weight, bias, eps)


def fuse_block(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether `block.c` computes the layers with these parameters, all of those of one of its functions, and `x`."""
    return may_fuse() and cpu.supports_layers(x, *parameters)


def may_fuse() -> bool:
    """Whether a faster form than the definition may be taken: eager, and not `RECOMBINE_KERNEL=reference`."""
    return not torch.compiler.is_compiling() and _chosen in ("auto", "cpu") and not _is_transformed()


def _is_transformed() -> bool:
    """Whether `torch.func`, forward-mode differentiation or `torch.jit.trace` is active, which the kernels do not have."""
    has_tangents = forward_ad._current_level >= 0
    return has_tangents or torch._C._are_functorch_transforms_active() or torch.jit._trace.is_tracing()


@constant_in_graphs
def _cpu_kernel_is_available() -> bool:
    reason = cpu.why_unavailable()
    if reason not in _logged:
        _logged.add(reason)
        if reason is None:
            _log.info("attention uses the fused CPU kernel")
        else:
            _log.warning("attention uses the reference path: %s", reason)
    return reason is None


def check_and_broadcast(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Check the arguments of attention and return q, k and v expanded to their common batch size and number of heads.

    Fused kernels trust the sizes that they are given, so wrong ones must not reach them.
    """
    check_choice("normalisation", options.normalisation, NORMALISATIONS)
    check_choice("value network", options.value_network, VALUE_NETWORKS)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InputError(f"{name} has shape {tuple(tensor.shape)}: expected 4 dimensions, {DIMENSIONS[name]}")
        if not tensor.is_floating_point():
            raise InputError(f"{name} has type {tensor.dtype}: expected a floating-point type")
    if q.shape[3] != k.shape[3]:
        raise InputError(f"q has heads of {q.shape[3]} features and k of {k.shape[3]}: expected the same number")
    if k.shape[1] != v.shape[1]:
        raise InputError(f"there are {k.shape[1]} keys and {v.shape[1]} values: expected as many values as keys")
    bias, mask, deep_weight = options.bias, options.mask, options.deep_weight
    others = {"k": k, "v": v, "bias": bias, "mask": mask, "deep_weight": deep_weight}
    for name, other in others.items():
        if other is not None and other.device != q.device:
            raise InputError(f"q is on {q.device} and {name} on {other.device}: expected the same device")
    batch, heads = _common_size("batch sizes", 0, q, k, v), _common_size("numbers of heads", 2, q, k, v)
    pairs = (batch, heads, q.shape[1], k.shape[1])
    if bias is not None:
        if not bias.is_floating_point():
            raise InputError(f"bias has type {bias.dtype}: expected a floating-point type")
        _check_broadcasts("bias", bias, pairs)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InputError(f"mask has type {mask.dtype}: expected torch.bool, True where a query may attend")
        _check_broadcasts("mask", mask, pairs)
    if options.dropout is not None:
        check_dropout(options.dropout.rate, options.dropout.form)
    if (options.value_network == "hyper_deep") != (deep_weight is not None):
        given = "missing" if deep_weight is None else "given"
        raise InputError(f"deep_weight is {given} for {options.value_network}: expected for hyper_deep, and only there")
    expected = (heads, v.shape[3], v.shape[3])
    if deep_weight is not None and deep_weight.shape != expected:
        raise InputError(f"deep_weight has shape {tuple(deep_weight.shape)}: expected (h, e, e) = {expected}")
    return _expand(q, batch, heads), _expand(k, batch, heads), _expand(v, batch, heads)


def check_dropout(rate: float, form: str = "elements") -> None:
    """Require a rate from 0 to below 1, and a known form."""
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise InputError(f"dropout is {rate!r}: expected a number from 0 to below 1")
    check_choice("form of dropout", form, DROPOUT_FORMS)


def check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Require the shapes of the arguments of a dense layer to match."""
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise InputError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}: expected (..., input) and (output, input)"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        raise InputError(f"bias has shape {tuple(bias.shape)}: expected ({weight.shape[0]},), one per output")


def _check_broadcasts(name: str, tensor: Tensor, shape: tuple[int, int, int, int]) -> None:
    expected = shape[-tensor.dim() :] if tensor.dim() else ()
    too_many = tensor.dim() > len(shape)
    if too_many or any(size not in (1, full) for size, full in zip(tensor.shape, expected, strict=True)):
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: expected to broadcast to (b, h, q, k) = {shape}")


def _common_size(what: str, dimension: int, *tensors: Tensor) -> int:
    sizes = [tensor.shape[dimension] for tensor in tensors]
    others = [size for size in sizes if size != 1]
    common = others[0] if others else 1
    if any(size not in (1, common) for size in sizes):
        listed = ", ".join(map(str, sizes))
        raise InputError(f"q, k, v have {what} {listed}: expected the same, or 1 where they are shared")
    return common


def _expand(tensor: Tensor, batch: int, heads: int) -> Tensor:
    if tensor.shape[0] == batch and tensor.shape[2] == heads:
        return tensor
    return tensor.expand(batch, -1, heads, -1)
