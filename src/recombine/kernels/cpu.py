"""Fused attention on CPUs: forward and backward in C (`cpu.c`, where the mathematics is), seen by torch as one operator.

It computes what `reference.py` defines, for the normalisations none, softmax and rms_head and the value networks linear,
hyper_linear and hyper_relu, without ever storing a tensor of queries x keys, and bit for bit the same with any number of
threads. The library is compiled on first use (`compiler.py`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.errors import InputError
from recombine.kernels.compiler import CompilerError, load_library

NORMALISATIONS = ("none", "softmax", "rms_head", "softmax_rms_head")
VALUE_NETWORKS = ("linear", "hyper_linear", "hyper_relu")
DTYPES = (torch.float32, torch.bfloat16)


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "token", "head")))


class _PairTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "query", "key")))


class _Problem(ctypes.Structure):
    """`problem` of cpu.c."""

    _fields_ = (
        *((name, _Tensor) for name in ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, _PairTensor) for name in ("bias", "grad_bias")),
        *((name, ctypes.c_void_p) for name in ("key_mask", "row_shift", "row_scale")),
        *((name, ctypes.c_int64) for name in ("num_batch", "queries", "keys", "heads", "dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("softmax", "rms", "hyper", "relu", "causal", "bf16", "threads")),
    )


@cache
def _library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none."""
    here = Path(__file__).parent
    try:
        library = load_library(here / "cpu.c", headers=[here / "cpu_tile.h"])
    except (CompilerError, InputError, OSError) as error:
        return str(error)
    for function in (library.recombine_attend_forward, library.recombine_attend_backward):
        function.argtypes, function.restype = [ctypes.POINTER(_Problem)], ctypes.c_int
    return library


def is_available() -> bool:
    """Whether the kernel is compiled, or can be; the first call compiles it."""
    return not isinstance(_library(), str)


def why_unavailable() -> str | None:
    """Why `is_available` is False, in one line."""
    library = _library()
    return library if isinstance(library, str) else None


def supports(
    q: Tensor, k: Tensor, v: Tensor, *, normalisation: str, value_network: str, bias: Tensor | None = None
) -> bool:
    """Whether `attend` of this file takes these arguments; no compiler is needed to tell."""
    tensors = (q, k, v) if bias is None else (q, k, v, bias)
    return (
        normalisation in NORMALISATIONS
        and value_network in VALUE_NETWORKS
        and (normalisation, value_network) != ("softmax_rms_head", "linear")
        and all(tensor.device.type == "cpu" and tensor.numel() > 0 for tensor in tensors)
        and q.dtype in DTYPES
        and q.dtype == k.dtype == v.dtype
    )


def attend(
    q: Float[Tensor, "b q h d"],
    k: Float[Tensor, "b k h d"],
    v: Float[Tensor, "b k h e"],
    *,
    normalisation: str,
    value_network: str,
    bias: Float[Tensor, "*#pairs"] | None = None,
    causal: bool = False,
    key_mask: Bool[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives, as `reference.attend` defines it.

    `bias` broadcasts to (b, h, q, k). `causal` aligns queries at the end: the last query sees every key. `key_mask` is True
    for keys that may be attended to.
    """
    if not supports(q, k, v, normalisation=normalisation, value_network=value_network, bias=bias):
        raise InputError(f"the CPU kernel has no {normalisation} + {value_network} for {q.dtype} on {q.device}")
    reason = why_unavailable()
    if reason is not None:
        raise InputError(f"the CPU kernel is not available: {reason}")
    if bias is not None:
        bias = _expand_bias(bias.float(), q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    return torch.ops.recombine.attend_forward(q, k, v, bias, key_mask, normalisation, value_network, causal)[0]


def _expand_bias(bias: Tensor, b: int, h: int, q: int, k: int) -> Tensor:
    """View the bias as (b, h, q, k), or as (1, h, q, k) if the batch shares it."""
    shared = bias.dim() < 4 or bias.shape[0] == 1
    return bias.expand(1 if shared else b, h, q, k)


def _new_problem(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, key_mask: Tensor | None, statistics: Tensor, choices: tuple
) -> _Problem:
    normalisation, value_network, causal = choices
    problem = _Problem()
    problem.q, problem.k, problem.v = _describe(q), _describe(k), _describe(v)
    problem.num_batch, problem.queries, problem.heads, problem.dim = q.shape
    problem.keys, problem.value_dim = k.shape[1], v.shape[3]
    if bias is not None:
        problem.bias = _describe_pairs(bias)
    if key_mask is not None:
        problem.key_mask = key_mask.data_ptr()
    problem.softmax, problem.rms = normalisation.startswith("softmax"), normalisation.endswith("rms_head")
    if problem.softmax:
        problem.row_shift, problem.row_scale = (part.data_ptr() for part in statistics)
    problem.hyper, problem.relu = value_network != "linear", value_network == "hyper_relu"
    problem.causal, problem.bf16, problem.threads = causal, q.dtype == torch.bfloat16, torch.get_num_threads()
    return problem


def _describe(tensor: Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), *tensor.stride()[:3])


def _describe_pairs(tensor: Tensor) -> _PairTensor:
    batch, *strides = tensor.stride()
    return _PairTensor(tensor.data_ptr(), batch if tensor.shape[0] > 1 else 0, *strides)


def _with_unit_stride(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _run(function: str, problem: _Problem) -> None:
    library = _library()
    assert not isinstance(library, str)
    if getattr(library, function)(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the scratch space of attention")


_OPERANDS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? key_mask"
_CHOICES = "str normalisation, str value_network, bool causal"
_FORWARD = f"({_OPERANDS}, {_CHOICES}) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad_out, {_OPERANDS}, Tensor? out, Tensor statistics, {_CHOICES}, bool bias_gradient)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("recombine::attend_forward", mutates_args=(), device_types="cpu", schema=_FORWARD)
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    normalisation: str,
    value_network: str,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and what the backward pass needs of the softmax."""
    out, statistics = _allocate_outputs(q, v, normalisation)
    q, k, v = _with_unit_stride(q), _with_unit_stride(k), _with_unit_stride(v)
    key_mask = None if key_mask is None else key_mask.contiguous()
    problem = _new_problem(q, k, v, bias, key_mask, statistics, (normalisation, value_network, causal))
    problem.out = _describe(out)
    _run("recombine_attend_forward", problem)
    return out, statistics


@_forward.register_fake
def _(q, k, v, bias, key_mask, normalisation, value_network, causal):
    return _allocate_outputs(q, v, normalisation)


def _allocate_outputs(q: Tensor, v: Tensor, normalisation: str) -> tuple[Tensor, Tensor]:
    b, num_queries, h, _ = q.shape
    rows = (2, b, num_queries, h) if normalisation.startswith("softmax") else (0,)
    return q.new_empty(b, num_queries, h, v.shape[3]), q.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("recombine::attend_backward", mutates_args=(), device_types="cpu", schema=_BACKWARD)
def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    key_mask: Tensor | None,
    out: Tensor | None,
    statistics: Tensor,
    normalisation: str,
    value_network: str,
    causal: bool,
    bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = _allocate_gradients(q, k, v, bias if bias_gradient else None)
    q, k, v, grad_out = _with_unit_stride(q), _with_unit_stride(k), _with_unit_stride(v), _with_unit_stride(grad_out)
    key_mask = None if key_mask is None else key_mask.contiguous()
    problem = _new_problem(q, k, v, bias, key_mask, statistics, (normalisation, value_network, causal))
    problem.grad_out, (problem.grad_q, problem.grad_k, problem.grad_v) = _describe(grad_out), map(_describe, grads[:3])
    if out is not None:
        problem.out = _describe(out)
    if bias_gradient:
        problem.grad_bias = _describe_pairs(grads[3])
    _run("recombine_attend_backward", problem)
    return grads


@_backward.register_fake
def _(grad_out, q, k, v, bias, key_mask, out, statistics, normalisation, value_network, causal, bias_gradient):
    return _allocate_gradients(q, k, v, bias if bias_gradient else None)


def _allocate_gradients(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_bias = q.new_empty((0,) if bias is None else bias.shape, dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_bias


def _save(ctx, inputs, output) -> None:
    q, k, v, bias, key_mask, *choices = inputs
    needs_out = choices[:2] == ["softmax", "linear"]
    ctx.save_for_backward(q, k, v, bias, key_mask, output[0] if needs_out else None, output[1])
    ctx.choices = choices
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, grad_out, _):
    bias_gradient = ctx.needs_input_grad[3]
    grads = torch.ops.recombine.attend_backward(grad_out, *ctx.saved_tensors, *ctx.choices, bias_gradient)
    return *grads[:3], grads[3] if bias_gradient else None, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)
