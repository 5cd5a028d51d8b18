"""Fused attention on CPUs: forward and backward in C (`cpu.c`, where the mathematics is), seen by torch as one operator.

It computes what `reference.py` defines, for every normalisation and every value network but hyper_deep, without ever storing
a tensor of queries x keys, and bit for bit the same with any number of threads.

Eager calls go through an `autograd.Function`, which costs half as much per call as an operator of `torch.library`; under
`torch.compile` the operators `recombine::attend_forward` and `recombine::attend_backward` keep the graph whole.

The compiled C kernel of `cpu.c`: found or built on first use, and called with tensors.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.attention.checks import open_door
from recombine.attention.dropout import Dropout, find_scale, find_threshold
from recombine.foundation.errors import InputError
from recombine.foundation.native import constant_in_graphs, open_kernel

DROPOUT_FORMS = ("", "pairs", "elements")
"""In the order of the constants of cpu_plan.h."""

MANY_KEYS = 128
"""From so many on, vectors of 16 floats are used where the machine has them."""


class Choices(NamedTuple):
    """What is computed, beside the tensors."""

    normalisation: str
    value_network: str
    causal: bool
    dropout_form: str = ""
    dropout_rate: float = 0.0


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "token", "head")))


class _PairTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "query", "key")))


class _Problem(ctypes.Structure):
    """`problem` of cpu_plan.h."""

    _fields_ = (
        *((name, _Tensor) for name in ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, _PairTensor) for name in ("bias", "grad_bias")),
        ("mask", _PairTensor),
        *((name, ctypes.c_void_p) for name in ("row_shift", "row_scale")),
        *((name, ctypes.c_int64) for name in ("batch", "queries", "keys", "heads", "dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("softmax", "rms", "hyper", "relu", "causal", "bf16", "threads")),
        *((name, ctypes.c_int64) for name in ("dropout", "dropout_threshold", "dropout_key")),
        ("dropout_scale", ctypes.c_double),
    )


@cache
def open_library(source: str = "cpu.c") -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    functions = ("recombine_attend_forward", "recombine_attend_backward")
    return open_kernel(Path(__file__).parent / source, {name: [ctypes.POINTER(_Problem)] for name in functions})


def allocate_outputs(q: Tensor, v: Tensor, choices: Choices) -> tuple[Tensor, Tensor]:
    """The output, and what the backward pass needs of the softmax: shift and scale of each row."""
    b, num_queries, h, _ = q.shape
    rows = (2, b, num_queries, h) if choices.normalisation.startswith("softmax") else (0,)
    return q.new_empty(b, num_queries, h, v.shape[3]), q.new_empty(rows, dtype=torch.float32)


def allocate_gradients(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and, if it is given, of the bias."""
    grad_bias = q.new_empty(0, dtype=torch.float32) if bias is None else torch.empty_like(bias)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_bias


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    dropout_key: Tensor | None,
    choices: Choices,
) -> tuple[Tensor, Tensor]:
    """The output and the statistics of the softmax."""
    out, statistics = allocate_outputs(q, v, choices)
    q, k, v = (_with_unit_stride(tensor) for tensor in (q, k, v))
    problem = _pose(q, k, v, bias, mask, dropout_key, statistics, choices)
    problem.out = _describe(out)
    _run("recombine_attend_forward", problem)
    return out, statistics


def run_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    dropout_key: Tensor | None,
    out: Tensor | None,
    statistics: Tensor,
    choices: Choices,
    needs_bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and bias; `out` is needed for softmax with the linear value network."""
    grads = allocate_gradients(q, k, v, bias if needs_bias_gradient else None)
    grad_out, q, k, v = (_with_unit_stride(tensor) for tensor in (grad_out, q, k, v))
    problem = _pose(q, k, v, bias, mask, dropout_key, statistics, choices)
    problem.grad_out = _describe(grad_out)
    problem.grad_q, problem.grad_k, problem.grad_v = (_describe(grad) for grad in grads[:3])
    if out is not None:
        problem.out = _describe(out)
    if needs_bias_gradient:
        problem.grad_bias = _describe_pairs(grads[3])
    _run("recombine_attend_backward", problem)
    return grads


def _pose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    dropout_key: Tensor | None,
    statistics: Tensor,
    choices: Choices,
) -> _Problem:
    normalisation, value_network, causal, form, rate = choices
    problem = _Problem(q=_describe(q), k=_describe(k), v=_describe(v))
    problem.batch, problem.queries, problem.heads, problem.dim = q.shape
    problem.keys, problem.value_dim = k.shape[1], v.shape[3]
    if bias is not None:
        problem.bias = _describe_pairs(bias)
    if mask is not None:
        problem.mask = _describe_pairs(mask)
    problem.softmax, problem.rms = normalisation.startswith("softmax"), normalisation.endswith("rms_head")
    if problem.softmax:
        problem.row_shift, problem.row_scale = statistics[0].data_ptr(), statistics[1].data_ptr()
    problem.hyper, problem.relu = value_network != "linear", value_network == "hyper_relu"
    problem.causal, problem.bf16, problem.threads = causal, q.dtype == torch.bfloat16, torch.get_num_threads()
    if dropout_key is not None:
        problem.dropout, problem.dropout_key = DROPOUT_FORMS.index(form), int(dropout_key)
        problem.dropout_threshold, problem.dropout_scale = find_threshold(rate), find_scale(rate)
    return problem


def _describe(tensor: Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), *tensor.stride()[:3])


def _describe_pairs(tensor: Tensor) -> _PairTensor:
    """A stride of 0 where there is one of something: the batch may share a bias, the heads a mask."""
    strides = (stride if size > 1 else 0 for size, stride in zip(tensor.shape[:2], tensor.stride()[:2], strict=True))
    return _PairTensor(tensor.data_ptr(), *strides, *tensor.stride()[2:])


def _with_unit_stride(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _run(function: str, problem: _Problem) -> None:
    library = open_library()
    assert not isinstance(library, str)
    if problem.keys >= MANY_KEYS and library.recombine_has_wide_vectors():
        wide = open_library("cpu_wide.c")
        library = library if isinstance(wide, str) else wide
    if getattr(library, function)(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the scratch space of attention")


NORMALISATIONS = ("none", "softmax", "rms_head", "softmax_rms_head")
VALUE_NETWORKS = ("linear", "nonlinear_value", "hyper_linear", "hyper_relu")
DTYPES = (torch.float32, torch.bfloat16)


@constant_in_graphs
def is_available() -> bool:
    """Whether the kernel is compiled, or can be; the first call compiles it."""
    return not isinstance(open_library(), str)


@constant_in_graphs
def why_unavailable() -> str | None:
    """Why `is_available` is False, in one line."""
    library = open_library()
    return library if isinstance(library, str) else None


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalisation: str,
    value_network: str,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
    deep_weight: Tensor | None = None,
) -> bool:
    """Whether `attend` of this file takes these arguments; no compiler is needed to tell."""
    tensors = [tensor for tensor in (q, k, v, bias, mask) if tensor is not None]
    return (
        deep_weight is None
        and (dropout is None or dropout.rows is None)
        and normalisation in NORMALISATIONS
        and value_network in VALUE_NETWORKS
        and (normalisation != "softmax_rms_head" or value_network.startswith("hyper"))
        and all(tensor.device.type == "cpu" and tensor.numel() > 0 for tensor in tensors)
        and q.dtype in DTYPES
        and q.dtype == k.dtype == v.dtype
    )


def attend(
    q: Float[Tensor, "#b q #h d"],
    k: Float[Tensor, "#b k #h d"],
    v: Float[Tensor, "#b k #h e"],
    *,
    normalisation: str,
    value_network: str,
    bias: Float[Tensor, "*#pairs"] | None = None,
    mask: Bool[Tensor, "*#pairs"] | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
    deep_weight: None = None,
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives, as `reference.attend` defines it."""
    q, k, v = open_door(q, k, v, bias=bias, mask=mask, dropout=dropout)
    given: dict[str, Any] = {"bias": bias, "mask": mask, "dropout": dropout, "deep_weight": deep_weight}
    if not supports(q, k, v, normalisation=normalisation, value_network=value_network, **given):
        raise InputError(f"the CPU kernel has no {normalisation} + {value_network} for {q.dtype} on {q.device}")
    reason = why_unavailable()
    if reason is not None:
        raise InputError(f"the CPU kernel is not available: {reason}")
    pairs = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if bias is not None:
        shared = bias.dim() < 4 or bias.shape[0] == 1
        bias = bias.float().expand(1 if shared else pairs[0], *pairs[1:])
    if mask is not None:
        mask = mask.expand(pairs)
    if value_network == "nonlinear_value":
        v, value_network = v.relu(), "linear"
    rate, form, key, *_ = dropout or (0.0, "", None)
    arguments = (q, k, v, bias, mask, key, normalisation, value_network, causal, form, rate)
    if torch.compiler.is_compiling() or type(q) not in (Tensor, torch.nn.Parameter):
        return torch.ops.recombine.attend_forward(*arguments)[0]
    return _Attend.apply(*arguments)


def _save(ctx, inputs, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, mask, key, *choices = inputs
    ctx.choices = Choices(*choices)
    needs_out = ctx.choices[:2] == ("softmax", "linear")
    ctx.save_for_backward(q, k, v, bias, mask, key, output[0] if needs_out else None, output[1])


class _Attend(torch.autograd.Function):
    """The kernel in eager mode."""

    @staticmethod
    def forward(ctx, q, k, v, bias, mask, key, *choices):
        output = run_forward(q, k, v, bias, mask, key, Choices(*choices))
        _save(ctx, (q, k, v, bias, mask, key, *choices), output)
        return output[0]

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():
            _refuse_second_derivative(ctx)
        needs_bias = ctx.needs_input_grad[3]
        q, k, v, bias, mask, key, out, statistics = ctx.saved_tensors
        *grads, grad_bias = run_backward(grad_out, q, k, v, bias, mask, key, out, statistics, ctx.choices, needs_bias)
        return *grads, grad_bias if needs_bias else None, *[None] * 7


def _refuse_second_derivative(ctx, *grads):
    raise NotImplementedError("the CPU kernel has no second derivatives: use the reference kernel for them")


# the same as operators, for torch.compile
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, Tensor? key"
_CHOICES = "str normalisation, str value_network, bool causal, str dropout_form, float dropout_rate"
torch.library.define("recombine::attend_forward", f"({_INPUTS}, {_CHOICES}) -> (Tensor, Tensor)")
torch.library.define(
    "recombine::attend_backward",
    f"(Tensor grad_out, {_INPUTS}, Tensor? out, Tensor statistics, {_CHOICES}, bool needs_bias)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("recombine::attend_forward", "cpu")
def _forward(q, k, v, bias, mask, key, *choices):
    return run_forward(q, k, v, bias, mask, key, Choices(*choices))


@torch.library.register_fake("recombine::attend_forward")
def _(q, k, v, bias, mask, key, *choices):
    return allocate_outputs(q, v, Choices(*choices))


@torch.library.impl("recombine::attend_backward", "cpu")
def _backward(grad_out, q, k, v, bias, mask, key, out, statistics, *choices):
    given, needs_bias = Choices(*choices[:-1]), choices[-1]
    return run_backward(grad_out, q, k, v, bias, mask, key, out, statistics, given, needs_bias)


@torch.library.register_fake("recombine::attend_backward")
def _(grad_out, q, k, v, bias, mask, key, out, statistics, *choices):
    return allocate_gradients(q, k, v, bias if choices[-1] else None)


def _differentiate(ctx, grad_out, _):
    needs_bias = ctx.needs_input_grad[3]
    *grads, grad_bias = torch.ops.recombine.attend_backward(grad_out, *ctx.saved_tensors, *ctx.choices, needs_bias)
    return *grads, grad_bias if needs_bias else None, *[None] * 7


torch.library.register_autograd("recombine::attend_forward", _differentiate, setup_context=_save)
torch.library.register_autograd("recombine::attend_backward", _refuse_second_derivative)
