"""Dense layers in float32 by oneDNN, on CPUs where its products are faster than those of torch's default library (MKL).

torch itself takes oneDNN for bf16 only. On AMD CPUs with AVX-512 oneDNN's float32 products of layers run at 190 to 210
GFLOP/s where MKL reaches 140 to 190 (`benchmarks/dense_products.py`), and they add the bias on the way. For the gradient of a
weight, which sums over all rows, oneDNN is slower than MKL, and `weight_gradient` is used. Numbers agree up to rounding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.cpu import weight_gradient
from recombine.foundation.native import is_amd_with_avx512

ENOUGH = 1 << 24
"""Rows times inputs times outputs from which the gain exceeds the cost of a call from Python."""


def supports(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN takes these, and there is one."""
    tensors = [tensor for tensor in (x, weight, bias) if tensor is not None]
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and find_operator() is not None
    )


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether it is faster than torch's own; a function of shapes and CPU, so that a resumed run takes the same path."""
    return x.numel() * weight.shape[0] >= ENOUGH and is_amd_with_avx512()


@cache
def find_operator() -> Any:
    """oneDNN's product with a transposed weight, or None in builds of torch without it."""
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def dense(
    x: Float[Tensor, "*batch input"], weight: Float[Tensor, "output input"], bias: Float[Tensor, " output"] | None
) -> Float[Tensor, "*batch output"]:
    """`x W^T + b` where `supports` says so."""
    return _Dense.apply(x.reshape(-1, x.shape[-1]), weight, bias).unflatten(0, x.shape[:-1])


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return find_operator()(x, weight, bias, "none", [], "")


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative is wanted: torch's own products have it
            return grad_out @ weight, grad_out.t() @ x, grad_out.sum(dim=0) if needs_bias else None
        grad_out = grad_out.contiguous()
        grad_x = _multiply(grad_out, weight.t()) if needs_x else None
        if not needs_weight:
            return grad_x, None, grad_out.sum(dim=0) if needs_bias else None
        return grad_x, *weight_gradient.differentiate(x, grad_out, needs_bias=needs_bias)
