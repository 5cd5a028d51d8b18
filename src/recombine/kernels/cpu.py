"""Fused attention on CPUs: forward and backward in C (`cpu.c`, where the mathematics is), seen by torch as one operator.

It computes what `reference.py` defines, for every normalisation and every value network but hyper_deep, without ever storing
a tensor of queries x keys, and bit for bit the same with any number of threads.

Eager calls go through an `autograd.Function`, which costs half as much per call as an operator of `torch.library`; under
`torch.compile` the operators `recombine::attend_forward` and `recombine::attend_backward` keep the graph whole.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.errors import InputError
from recombine.kernels import cpu_library
from recombine.kernels.cpu_library import Choices
from recombine.kernels.door import open_door
from recombine.kernels.dropout import Dropout
from recombine.kernels.processor import constant_in_graphs

NORMALISATIONS = ("none", "softmax", "rms_head", "softmax_rms_head")
VALUE_NETWORKS = ("linear", "nonlinear_value", "hyper_linear", "hyper_relu")
DTYPES = (torch.float32, torch.bfloat16)


@constant_in_graphs
def is_available() -> bool:
    """Whether the kernel is compiled, or can be; the first call compiles it."""
    return not isinstance(cpu_library.open_library(), str)


@constant_in_graphs
def why_unavailable() -> str | None:
    """Why `is_available` is False, in one line."""
    library = cpu_library.open_library()
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
        output = cpu_library.run_forward(q, k, v, bias, mask, key, Choices(*choices))
        _save(ctx, (q, k, v, bias, mask, key, *choices), output)
        return output[0]

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():
            _refuse_second_derivative(ctx)
        needs_bias = ctx.needs_input_grad[3]
        q, k, v, bias, mask, key, out, statistics = ctx.saved_tensors
        *grads, grad_bias = cpu_library.run_backward(
            grad_out, q, k, v, bias, mask, key, out, statistics, ctx.choices, needs_bias
        )
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
    return cpu_library.run_forward(q, k, v, bias, mask, key, Choices(*choices))


@torch.library.register_fake("recombine::attend_forward")
def _(q, k, v, bias, mask, key, *choices):
    return cpu_library.allocate_outputs(q, v, Choices(*choices))


@torch.library.impl("recombine::attend_backward", "cpu")
def _backward(grad_out, q, k, v, bias, mask, key, out, statistics, *choices):
    given, needs_bias = Choices(*choices[:-1]), choices[-1]
    return cpu_library.run_backward(grad_out, q, k, v, bias, mask, key, out, statistics, given, needs_bias)


@torch.library.register_fake("recombine::attend_backward")
def _(grad_out, q, k, v, bias, mask, key, out, statistics, *choices):
    return cpu_library.allocate_gradients(q, k, v, bias if choices[-1] else None)


def _differentiate(ctx, grad_out, _):
    needs_bias = ctx.needs_input_grad[3]
    *grads, grad_bias = torch.ops.recombine.attend_backward(grad_out, *ctx.saved_tensors, *ctx.choices, needs_bias)
    return *grads, grad_bias if needs_bias else None, *[None] * 7


torch.library.register_autograd("recombine::attend_forward", _differentiate, setup_context=_save)
torch.library.register_autograd("recombine::attend_backward", _refuse_second_derivative)
