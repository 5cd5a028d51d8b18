"""The layers around a block's attention, fused in C (`block.c`), as functions of torch.

    norm_dense      x -> x, W norm(x) + b
    feed_forward    residual, heads -> total + W_2 gelu(W_1 norm(total) + b_1) + b_2,   total = residual + W_o heads + b_o

The same numbers as `kernels.add_norm`, `dense` and `add_gelu` up to rounding, with less traffic between cache and memory, and
one division of the rows among threads instead of one per operation.
"""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from recombine.attention.cpu import kernels
from recombine.attention.definition import differentiate_definition

MULTIPLE = 16
"""Widths are multiples of this: the widest vectors."""
MAX_WEIGHT = 1 << 18
"""Numbers in the weights of a call; larger ones do not stay in a second-level cache beside their gradients."""
POINTERS = (
    *("x", "heads", "total", "hidden", "out", "grad_out", "grad_total", "grad_x", "grad_heads"),
    *("gain", "shift", "weight", "bias", "in_weight", "in_bias", "out_weight", "out_bias", "gradients"),
)


class _BlockProblem(ctypes.Structure):
    """`problem` of block.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("rows", "width", "inner", "mlp", "threads")),
    )


kernels.FUNCTIONS["block.c"] = (
    _BlockProblem,
    tuple(f"recombine_{name}_{way}" for name in ("norm_dense", "feed_forward") for way in ("forward", "backward")),
)


def supports(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether the functions of this file compute this, with all parameters of the call, and are compiled."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return False
    weights = 0
    for parameter in parameters:
        if parameter is None or type(parameter) not in (Tensor, nn.Parameter) or parameter.dtype != torch.float32:
            return False
        if (
            not parameter.is_contiguous()
            or parameter.device.type != "cpu"
            or any(n % MULTIPLE for n in parameter.shape)
        ):
            return False
        weights += parameter.numel()
    return weights <= MAX_WEIGHT and not isinstance(kernels.open_library("block.c"), str)


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


NAMES = ("gain", "shift", "weight", "bias", "in_weight", "in_bias", "out_weight", "out_bias")


def _run(function: str, parameters: tuple[Tensor, ...], epsilon: float, **tensors: Tensor | None) -> None:
    tensors |= dict(zip(NAMES, parameters, strict=False))
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    problem = _BlockProblem(epsilon=epsilon, **pointers)
    gain, _, weight, *others = parameters
    problem.width, problem.mlp = gain.numel(), others[2].numel() if len(others) > 1 else 0
    problem.inner = weight.numel() // problem.width
    x = tensors["x"]
    assert x is not None
    problem.rows = x.numel() // problem.width
    kernels._run("block.c", f"recombine_{function}", problem)


def _allocate_gradients(parameters: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
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
        _run("norm_dense_forward", (gain, shift, weight, bias), epsilon, x=x, out=out)
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
        gradients, grads = _allocate_gradients(tuple(parameters))
        tensors = {"x": x, "grad_out": grad_out.contiguous(), "grad_x": torch.empty_like(x), "gradients": gradients}
        tensors["grad_total"] = None if grad_total is None else grad_total.contiguous()
        _run("norm_dense_backward", tuple(parameters), ctx.epsilon, **tensors)
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
        _run("feed_forward_forward", tuple(parameters), epsilon, **tensors)
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
        gradients, grads = _allocate_gradients(tuple(parameters))
        found = {"grad_x": torch.empty_like(residual), "grad_heads": torch.empty_like(heads)}
        tensors = {"x": residual, "heads": heads, "total": total, "hidden": hidden, "grad_out": grad_out.contiguous()}
        _run("feed_forward_backward", tuple(parameters), ctx.epsilon, gradients=gradients, **tensors, **found)
        return *found.values(), *grads, None
