"""The C kernels of layers on CPUs, seen by torch as functions: attention, dense layers, GELU, and LayerNorm.

    attend         `cpu.c`, where the mathematics is: what `definition.py` defines, for every normalisation and every value
                   network but hyper_deep, without a tensor of queries x keys, and bit for bit the same with any number of
                   threads
    dense          x W^T + b in float32 by oneDNN, on CPUs where its products are faster than those of torch's default
                   library, MKL; the gradients of weight and bias in one pass (`weight_gradient.c`)
    add_gelu       gelu(hidden + bias) in GELU's tanh form, in one pass (`gelu.c`)
    add_norm       a residual sum and its LayerNorm in one pass (`norm.c`)
    norm_dense, feed_forward
                   the layers before and after a block's attention (`block.c`), rows of which stay in cache:
                       x -> x, W norm(x) + b
                       residual, heads -> total + W_2 gelu(W_1 norm(total) + b_1) + b_2, total = residual + W_o heads + b_o

Each library is found or built on first use. The numbers are those of torch's own operations up to rounding. Dispatch
(`dispatch.py`) checks shapes and types, and the matching `supports`, before it calls a function of this file.

Eager calls of attention go through an `autograd.Function`, which costs half as much per call as an operator of
`torch.library`; under `torch.compile` the operators `recombine::attend_forward` and `recombine::attend_backward` keep the
graph whole.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from recombine.attention import definition
from recombine.attention.definition import (
    AttentionOptions,
    Dropout,
    differentiate_definition,
    dropout_scale,
    dropout_threshold,
)
from recombine.foundation.native import constant_in_graphs, is_amd_with_avx512, open_kernel

NORMALISATIONS = ("none", "softmax", "rms_head", "softmax_rms_head")
VALUE_NETWORKS = ("linear", "nonlinear_value", "hyper_linear", "hyper_relu")
DTYPES = (torch.float32, torch.bfloat16)
DROPOUT_FORMS = ("", "pairs", "elements")
"""In the order of the constants of cpu_plan.h."""
MIN_KEYS_FOR_WIDE_VECTORS = 128
"""Number of keys from which vectors of 16 floats are used where the machine has them."""
MIN_MULTIPLICATIONS = 1 << 24
"""Rows times inputs times outputs of a dense layer from which oneDNN gains more than a call from Python costs."""

WIDTH_MULTIPLE = 16
"""Widths of fused layers are multiples of this: the widest vectors."""
MAX_WEIGHTS = 1 << 18
"""Numbers in the weights of a call of fused layers; more do not stay in a second-level cache beside their gradients."""


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "token", "head")))


class _PairTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "query", "key")))


class _AttentionProblem(ctypes.Structure):
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


class _WeightGradientProblem(ctypes.Structure):
    """`problem` of weight_gradient.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "grad_out", "grad_weight", "grad_bias")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs", "x_stride", "grad_stride", "threads")),
    )


class _GeluProblem(ctypes.Structure):
    """`problem` of gelu.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "out", "grad_out", "grad_hidden", "bias", "grad_bias")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "bf16", "threads")),
    )


class _NormProblem(ctypes.Structure):
    """`problem` of norm.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("residual", "update", "total", "normed")),
        *((name, ctypes.c_void_p) for name in ("grad_total", "grad_normed", "grad")),
        *((name, ctypes.c_void_p) for name in ("gain", "shift", "statistics", "grad_gain", "grad_shift")),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("rows", "width", "bf16", "threads")),
    )


LAYER_PARAMETERS = ("gain", "shift", "weight", "bias", "in_weight", "in_bias", "out_weight", "out_bias")


class _BlockProblem(ctypes.Structure):
    """`problem` of block.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "heads", "total", "hidden", "out", "grad_out", "grad_total")),
        *((name, ctypes.c_void_p) for name in ("grad_x", "grad_heads", *LAYER_PARAMETERS, "gradients")),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("rows", "width", "inner", "mlp", "threads")),
    )


class _PeakProblem(ctypes.Structure):
    """`problem` of peak.c."""

    _fields_ = (("sum", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("repeats", "bf16", "threads")))


FUNCTIONS: dict[str, tuple[type[ctypes.Structure], tuple[str, ...]]] = {
    "cpu.c": (_AttentionProblem, ("recombine_attend_forward", "recombine_attend_backward")),
    "cpu_wide.c": (_AttentionProblem, ("recombine_attend_forward", "recombine_attend_backward")),
    "weight_gradient.c": (_WeightGradientProblem, ("recombine_weight_gradient",)),
    "gelu.c": (_GeluProblem, ("recombine_gelu_forward", "recombine_gelu_backward")),
    "norm.c": (_NormProblem, ("recombine_norm_forward", "recombine_norm_backward")),
    "block.c": (
        _BlockProblem,
        tuple(f"recombine_{name}_{way}" for name in ("norm_dense", "feed_forward") for way in ("forward", "backward")),
    ),
    "peak.c": (_PeakProblem, ("recombine_count_multiply_adds", "recombine_multiply_adds")),
}


@cache
def open_library(source: str = "cpu.c") -> ctypes.CDLL | str:
    """The compiled C file, or why there is none, in one line."""
    problem, functions = FUNCTIONS[source]
    return open_kernel(Path(__file__).parent / source, {name: [ctypes.POINTER(problem)] for name in functions})


@constant_in_graphs
def is_available() -> bool:
    """Whether attention is compiled, or can be; the first call compiles it."""
    return why_unavailable() is None


@constant_in_graphs
def why_unavailable() -> str | None:
    """Why `is_available` is False, in one line."""
    library = open_library()
    return library if isinstance(library, str) else None


def _run(source: str, function: str, problem: Any) -> None:
    problem.threads = torch.get_num_threads()
    library = open_library(source)
    assert not isinstance(library, str)
    if getattr(library, function)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"not enough memory for the scratch space of {source}")


def supports(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether `attend` computes this; whether there is a compiler does not matter."""
    tensors = [tensor for tensor in (q, k, v, options.bias, options.mask) if tensor is not None]
    return (
        options.deep_weight is None
        and (options.dropout is None or options.dropout.rows is None)
        and options.normalisation in NORMALISATIONS
        and options.value_network in VALUE_NETWORKS
        and (options.normalisation != "softmax_rms_head" or options.value_network.startswith("hyper"))
        and all(tensor.device.type == "cpu" and tensor.numel() > 0 for tensor in tensors)
        and q.dtype in DTYPES
        and q.dtype == k.dtype == v.dtype
    )


def attend(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], options: AttentionOptions
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives."""
    bias, mask, value_network = options.bias, options.mask, options.value_network
    pairs = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if bias is not None:
        shared = bias.dim() < 4 or bias.shape[0] == 1
        bias = bias.float().expand(1 if shared else pairs[0], *pairs[1:])
    if mask is not None:
        mask = mask.expand(pairs)
    if value_network == "nonlinear_value":
        v, value_network = v.relu(), "linear"
    rate, form, key, *_ = options.dropout or (0.0, "", None)
    arguments = (q, k, v, bias, mask, key, options.normalisation, value_network, options.causal, form, rate)
    if torch.compiler.is_compiling() or type(q) not in (Tensor, nn.Parameter):
        return torch.ops.recombine.attend_forward(*arguments)[0]
    return _Attend.apply(*arguments)


def _allocate_outputs(q: Tensor, v: Tensor, normalisation: str) -> tuple[Tensor, Tensor]:
    """The output, and what the backward pass needs of the softmax: shift and scale of each row."""
    b, num_queries, h, _ = q.shape
    rows = (2, b, num_queries, h) if normalisation.startswith("softmax") else (0,)
    return q.new_empty(b, num_queries, h, v.shape[3]), q.new_empty(rows, dtype=torch.float32)


def _allocate_gradients(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the bias, if any."""
    grad_bias = q.new_empty(0, dtype=torch.float32) if bias is None else torch.empty_like(bias)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_bias


def _run_forward(q, k, v, bias, mask, key, normalisation, *choices) -> tuple[Tensor, Tensor]:
    """The output and the statistics of the softmax."""
    out, statistics = _allocate_outputs(q, v, normalisation)
    q, k, v = (_with_unit_stride(tensor) for tensor in (q, k, v))
    problem = _pack_arguments(q, k, v, bias, mask, key, statistics, normalisation, *choices)
    problem.out = _describe(out)
    _run_attention("recombine_attend_forward", problem)
    return out, statistics


def _run_backward(
    grad_out, q, k, v, bias, mask, key, out, statistics, *choices_and_need
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and bias; `out` is needed for softmax with the linear value network."""
    *choices, needs_bias = choices_and_need
    grads = _allocate_gradients(q, k, v, bias if needs_bias else None)
    grad_out, q, k, v = (_with_unit_stride(tensor) for tensor in (grad_out, q, k, v))
    problem = _pack_arguments(q, k, v, bias, mask, key, statistics, *choices)
    problem.grad_out = _describe(grad_out)
    problem.grad_q, problem.grad_k, problem.grad_v = (_describe(grad) for grad in grads[:3])
    if out is not None:
        problem.out = _describe(out)
    if needs_bias:
        problem.grad_bias = _describe_pairs(grads[3])
    _run_attention("recombine_attend_backward", problem)
    return grads


def _pack_arguments(
    q, k, v, bias, mask, key, statistics, normalisation, value_network, causal, form, rate
) -> _AttentionProblem:
    problem = _AttentionProblem(q=_describe(q), k=_describe(k), v=_describe(v))
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
    problem.causal, problem.bf16 = causal, q.dtype == torch.bfloat16
    if key is not None:
        problem.dropout, problem.dropout_key = DROPOUT_FORMS.index(form), int(key)
        problem.dropout_threshold, problem.dropout_scale = dropout_threshold(rate), dropout_scale(rate)
    return problem


def _describe(tensor: Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), *tensor.stride()[:3])


def _describe_pairs(tensor: Tensor) -> _PairTensor:
    """A stride of 0 for dimensions of size 1: the batch may share a bias, the heads a mask."""
    strides = (stride if size > 1 else 0 for size, stride in zip(tensor.shape[:2], tensor.stride()[:2], strict=True))
    return _PairTensor(tensor.data_ptr(), *strides, *tensor.stride()[2:])


def _with_unit_stride(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _run_attention(function: str, problem: _AttentionProblem) -> None:
    source, library = "cpu.c", open_library()
    assert not isinstance(library, str)
    if problem.keys >= MIN_KEYS_FOR_WIDE_VECTORS and library.recombine_has_wide_vectors():
        source = "cpu.c" if isinstance(open_library("cpu_wide.c"), str) else "cpu_wide.c"
    _run(source, function, problem)


def _save(ctx, inputs, output: tuple[Tensor, Tensor]) -> None:
    ctx.choices = inputs[6:]
    needs_out = ctx.choices[:2] == ("softmax", "linear")
    ctx.save_for_backward(*inputs[:6], output[0] if needs_out else None, output[1])


def _differentiate(ctx, grad_out, run_backward):
    needs_bias = ctx.needs_input_grad[3]
    if torch.is_grad_enabled():
        q, k, v, bias, mask, key, *_ = ctx.saved_tensors
        normalisation, value_network, causal, form, rate = ctx.choices
        dropout = None if key is None else Dropout(rate, form, key)
        options = AttentionOptions(normalisation, value_network, None, mask, causal, dropout)
        grads = definition.differentiate_attention(q, k, v, bias, options, grad_out)
    else:
        grads = run_backward(grad_out, *ctx.saved_tensors, *ctx.choices, needs_bias)
    return *grads[:3], grads[3] if needs_bias else None, *[None] * 7


class _Attend(torch.autograd.Function):
    """Attention in eager mode."""

    @staticmethod
    def forward(ctx, *arguments):
        output = _run_forward(*arguments)
        _save(ctx, arguments, output)
        return output[0]

    @staticmethod
    def backward(ctx, grad_out):
        return _differentiate(ctx, grad_out, _run_backward)


# the same as operators, for torch.compile
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, Tensor? key"
_CHOICES = "str normalisation, str value_network, bool causal, str dropout_form, float dropout_rate"
torch.library.define("recombine::attend_forward", f"({_INPUTS}, {_CHOICES}) -> (Tensor, Tensor)")
torch.library.define(
    "recombine::attend_backward",
    f"(Tensor grad_out, {_INPUTS}, Tensor? out, Tensor statistics, {_CHOICES}, bool needs_bias)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
torch.library.impl("recombine::attend_forward", "cpu", _run_forward)
torch.library.impl("recombine::attend_backward", "cpu", _run_backward)


@torch.library.register_fake("recombine::attend_forward")
def _(q, k, v, bias, mask, key, normalisation, *choices):
    return _allocate_outputs(q, v, normalisation)


@torch.library.register_fake("recombine::attend_backward")
def _(grad_out, q, k, v, bias, *others):
    return _allocate_gradients(q, k, v, bias if others[-1] else None)


def _differentiate_operator(ctx, grad_out, _):
    return _differentiate(ctx, grad_out, torch.ops.recombine.attend_backward)


torch.library.register_autograd("recombine::attend_forward", _differentiate_operator, setup_context=_save)


def supports_dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN is there and computes this."""
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and find_onednn() is not None
    )


def dense_is_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is faster than torch's own product (`benchmarks/dense_products.py`).

    On AMD CPUs with AVX-512 its float32 products of layers run at 190 to 210 GFLOP/s where MKL reaches 140 to 190.
    """
    return x.numel() * weight.shape[0] >= MIN_MULTIPLICATIONS and is_amd_with_avx512()


@cache
def find_onednn() -> Any:
    """oneDNN's product with a transposed weight, or None in builds of torch without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def dense(
    x: Float[Tensor, "*batch input"], weight: Float[Tensor, "output input"], bias: Float[Tensor, " output"] | None
) -> Float[Tensor, "*batch output"]:
    """`x W^T + b`."""
    return _Dense.apply(x.reshape(-1, x.shape[-1]), weight, bias).unflatten(0, x.shape[:-1])


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return find_onednn()(x, weight, bias, "none", [], "")


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_out):
        x, weight, bias = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return differentiate_definition(functional.linear, (x, weight, bias), grad_out)
        grad_out = grad_out.contiguous()
        grad_x = _multiply(grad_out, weight.t()) if needs_x else None
        if not needs_weight:
            return grad_x, None, grad_out.sum(dim=0) if needs_bias else None
        return grad_x, *dense_gradients(x, grad_out, needs_bias=needs_bias)


def dense_gradients(
    x: Float[Tensor, "rows input"], grad_out: Float[Tensor, "rows output"], *, needs_bias: bool
) -> tuple[Float[Tensor, "output input"], Float[Tensor, " output"] | None]:
    """Gradients of weight and bias: `grad_out^T x`, and the sum of `grad_out` over its rows; without a compiler by torch.

    The product sums over all rows of a batch and is as small as the weight. Libraries for general products, oneDNN too, reach
    three quarters of their speed on it.
    """
    if isinstance(open_library("weight_gradient.c"), str):
        return grad_out.t() @ x, grad_out.sum(dim=0) if needs_bias else None
    x, grad_out = (_with_unit_stride(tensor) for tensor in (x, grad_out))
    grad_weight = x.new_empty(grad_out.shape[1], x.shape[1])
    grad_bias = x.new_empty(grad_out.shape[1]) if needs_bias else None
    problem = _WeightGradientProblem(x=x.data_ptr(), grad_out=grad_out.data_ptr(), grad_weight=grad_weight.data_ptr())
    problem.grad_bias = None if grad_bias is None else grad_bias.data_ptr()
    problem.rows, problem.inputs, problem.outputs = *x.shape, grad_out.shape[1]
    problem.x_stride, problem.grad_stride = x.stride(0), grad_out.stride(0)
    _run("weight_gradient.c", "recombine_weight_gradient", problem)
    return grad_weight, grad_bias


def supports_gelu(x: Tensor, bias: Tensor) -> bool:
    """Whether `add_gelu` computes this, and is compiled."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return (
        x.device.type == bias.device.type == "cpu"
        and x.numel() > 0
        and dtype in DTYPES
        and bias.dtype == torch.float32
        and not isinstance(open_library("gelu.c"), str)
    )


def add_gelu(hidden: Float[Tensor, "*batch output"], bias: Float[Tensor, " output"]) -> Float[Tensor, "*batch output"]:
    """`gelu(hidden + bias)`."""
    return _Gelu.apply(hidden.contiguous(), bias.contiguous())


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, bias):
        ctx.save_for_backward(hidden, bias)
        out = torch.empty_like(hidden)
        _run_gelu("recombine_gelu_forward", hidden, bias, out=out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        hidden, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiate_definition(_define_gelu, (hidden, bias), grad_out)
        grad_hidden, grad_bias = torch.empty_like(hidden), torch.empty_like(bias)
        tensors = {"grad_out": grad_out.contiguous(), "grad_hidden": grad_hidden, "grad_bias": grad_bias}
        _run_gelu("recombine_gelu_backward", hidden, bias, **tensors)
        return grad_hidden, grad_bias


def _define_gelu(hidden: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(hidden + bias, approximate="tanh").to(hidden.dtype)


def _run_gelu(function: str, hidden: Tensor, bias: Tensor, **tensors: Tensor) -> None:
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    problem = _GeluProblem(hidden=hidden.data_ptr(), bias=bias.data_ptr(), **pointers)
    problem.width, problem.bf16 = hidden.shape[-1], hidden.dtype == torch.bfloat16
    problem.rows = hidden.numel() // problem.width
    _run("gelu.c", function, problem)


def supports_norm(residual: Tensor, update: Tensor | None, gain: Tensor, shift: Tensor) -> bool:
    """Whether `add_norm` computes this, and is compiled."""
    return (
        residual.device.type == "cpu"
        and residual.numel() > 0
        and residual.dtype in DTYPES
        and (update is None or (update.dtype, update.device) == (residual.dtype, residual.device))
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in (gain, shift))
        and not isinstance(open_library("norm.c"), str)
    )


def add_norm(
    residual: Tensor, update: Tensor | None, gain: Tensor, shift: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """`residual + update`, and its LayerNorm; shapes as in `dispatch.add_norm`."""
    return _AddNorm.apply(residual.contiguous(), update, gain.contiguous(), shift.contiguous(), epsilon)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, residual, update, gain, shift, epsilon):
        ctx.set_materialize_grads(False)
        ctx.has_update, ctx.epsilon = update is not None, epsilon
        total = residual if update is None else torch.empty_like(residual)
        normed = torch.empty_like(residual)
        statistics = gain.new_empty(residual.numel() // gain.numel(), 2)
        tensors = {"residual": residual, "normed": normed, "shift": shift}
        if update is not None:
            tensors["update"] = update.contiguous()
        _run_norm("recombine_norm_forward", total, gain, statistics, epsilon, **tensors)
        ctx.save_for_backward(total, gain, shift, statistics)
        return total, normed

    @staticmethod
    def backward(ctx, grad_total, grad_normed):
        total, gain, shift, statistics = ctx.saved_tensors
        if torch.is_grad_enabled():

            def define(total, gain, shift):
                normed = functional.layer_norm(total.float(), gain.shape, gain, shift, ctx.epsilon)
                return total, normed.to(total.dtype)

            grads = differentiate_definition(define, (total, gain, shift), grad_total, grad_normed)
            return grads[0], grads[0] if ctx.has_update else None, *grads[1:], None
        grad, grad_gain, grad_shift = torch.empty_like(total), torch.empty_like(gain), torch.empty_like(shift)
        tensors = {"grad": grad, "grad_gain": grad_gain, "grad_shift": grad_shift}
        for name, incoming in (("grad_total", grad_total), ("grad_normed", grad_normed)):
            if incoming is not None:
                tensors[name] = incoming.contiguous()
        _run_norm("recombine_norm_backward", total, gain, statistics, 0.0, **tensors)
        return grad, grad if ctx.has_update else None, grad_gain, grad_shift, None


def _run_norm(function: str, total: Tensor, gain: Tensor, statistics: Tensor, epsilon: float, **more: Tensor) -> None:
    tensors = {"total": total, "gain": gain, "statistics": statistics, **more}
    problem = _NormProblem(epsilon=epsilon, **{name: tensor.data_ptr() for name, tensor in tensors.items()})
    problem.width, problem.bf16 = gain.numel(), total.dtype == torch.bfloat16
    problem.rows = total.numel() // problem.width
    _run("norm.c", function, problem)


def run_multiply_adds(repeats: int, *, bf16: bool) -> int:
    """Multiply and add numbers in registers on every thread; returns how many, or 0 without such instructions."""
    total = ctypes.c_float()
    problem = _PeakProblem(ctypes.addressof(total), repeats, bf16, torch.get_num_threads())
    library = open_library("peak.c")
    if isinstance(library, str) or not library.recombine_count_multiply_adds(ctypes.byref(problem)):
        return 0
    _run("peak.c", "recombine_multiply_adds", problem)
    return library.recombine_count_multiply_adds(ctypes.byref(problem)) * repeats * problem.threads


def supports_layers(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether `norm_dense` and `feed_forward` compute this, with all parameters of the call, and are compiled."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return False
    weights = 0
    for parameter in parameters:
        if parameter is None or type(parameter) not in (Tensor, nn.Parameter) or parameter.dtype != torch.float32:
            return False
        if (
            not parameter.is_contiguous()
            or parameter.device.type != "cpu"
            or any(n % WIDTH_MULTIPLE for n in parameter.shape)
        ):
            return False
        weights += parameter.numel()
    return weights <= MAX_WEIGHTS and not isinstance(open_library("block.c"), str)


def norm_dense(
    x: Float[Tensor, "*batch width"],
    gain: Float[Tensor, " width"],
    shift: Float[Tensor, " width"],
    epsilon: float,
    weight: Float[Tensor, "inner width"],
    bias: Float[Tensor, " inner"],
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch inner"]]:
    """`x` itself, and the dense layer of its LayerNorm."""
    return _NormDense.apply(x.contiguous(), gain, shift, weight, bias, epsilon)


def feed_forward(
    residual: Float[Tensor, "*batch width"],
    heads: Float[Tensor, "*batch inner"],
    epsilon: float,
    *parameters: Tensor,
) -> Float[Tensor, "*batch width"]:
    """The block's output from its residual stream and what the heads received.

    `parameters`: gain and shift of the norm; weight and bias of the heads' output, of the hidden layer, and of the output.
    """
    return _FeedForward.apply(residual.contiguous(), heads.contiguous(), *parameters, epsilon)


def _run_layers(function: str, parameters: tuple[Tensor, ...], epsilon: float, **tensors: Tensor | None) -> None:
    tensors |= dict(zip(LAYER_PARAMETERS, parameters, strict=False))
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    problem = _BlockProblem(epsilon=epsilon, **pointers)
    gain, _, weight, *others = parameters
    problem.width, problem.mlp = gain.numel(), others[2].numel() if len(others) > 1 else 0
    problem.inner = weight.numel() // problem.width
    x = tensors["x"]
    assert x is not None
    problem.rows = x.numel() // problem.width
    _run("block.c", f"recombine_{function}", problem)


def _allocate_layer_gradients(parameters: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """One array, and the gradients in it."""
    sizes = [parameter.numel() for parameter in parameters]
    gradients = parameters[0].new_empty(sum(sizes))
    return gradients, [part.view(p.shape) for part, p in zip(gradients.split(sizes), parameters, strict=True)]


class _NormDense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, shift, weight, bias, epsilon):
        ctx.set_materialize_grads(False)
        ctx.epsilon = epsilon
        ctx.save_for_backward(x, gain, shift, weight, bias)
        out = x.new_empty(*x.shape[:-1], len(weight))
        _run_layers("norm_dense_forward", (gain, shift, weight, bias), epsilon, x=x, out=out)
        return x, out

    @staticmethod
    def backward(ctx, grad_total, grad_out):
        x, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():

            def define(x, gain, shift, weight, bias):
                normed = functional.layer_norm(x, gain.shape, gain, shift, ctx.epsilon)
                return x.view_as(x), functional.linear(normed, weight, bias)

            return *differentiate_definition(define, (x, *parameters), grad_total, grad_out), None
        if grad_out is None:
            return grad_total, *[None] * 5
        gradients, grads = _allocate_layer_gradients(tuple(parameters))
        tensors = {"x": x, "grad_out": grad_out.contiguous(), "grad_x": torch.empty_like(x), "gradients": gradients}
        tensors["grad_total"] = None if grad_total is None else grad_total.contiguous()
        _run_layers("norm_dense_backward", tuple(parameters), ctx.epsilon, **tensors)
        return tensors["grad_x"], *grads, None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, residual, heads, *parameters_and_epsilon):
        *parameters, epsilon = parameters_and_epsilon
        total = hidden = None
        if any(ctx.needs_input_grad):
            total = torch.empty_like(residual)
            hidden = residual.new_empty(*residual.shape[:-1], len(parameters[4]))
            ctx.save_for_backward(residual, heads, total, hidden, *parameters)
            ctx.epsilon = epsilon
        out = torch.empty_like(residual)
        tensors = {"x": residual, "heads": heads, "total": total, "hidden": hidden, "out": out}
        _run_layers("feed_forward_forward", tuple(parameters), epsilon, **tensors)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        residual, heads, total, hidden, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():

            def define(residual, heads, gain, shift, weight, bias, *layers):
                total = residual + functional.linear(heads, weight, bias)
                normed = functional.layer_norm(total, gain.shape, gain, shift, ctx.epsilon)
                active = functional.gelu(functional.linear(normed, *layers[:2]), approximate="tanh")
                return total + functional.linear(active, *layers[2:])

            return *differentiate_definition(define, (residual, heads, *parameters), grad_out), None
        gradients, grads = _allocate_layer_gradients(tuple(parameters))
        found = {"grad_x": torch.empty_like(residual), "grad_heads": torch.empty_like(heads)}
        tensors = {"x": residual, "heads": heads, "total": total, "hidden": hidden, "grad_out": grad_out.contiguous()}
        _run_layers("feed_forward_backward", tuple(parameters), ctx.epsilon, gradients=gradients, **tensors, **found)
        return *found.values(), *grads, None
