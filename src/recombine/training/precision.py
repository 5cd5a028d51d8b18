"""Numerical precision of a training step: float32, or bf16 for dense layers and the activations between them.

With bf16 the operands of a dense layer are rounded to 8 bits of significand, products are summed in float32, and the
result is rounded again; parameters, attention scores, loss and optimizer stay in float32. On hardware with bf16
instructions this is `torch.autocast`. On other CPUs torch emulates them one number at a time, about twenty times slower
than float32, so there the same rounding is applied around float32 products.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from recombine.training.config import Precision


def use_precision(
    precision: Precision, device: torch.device, *, compiled: bool = False
) -> contextlib.AbstractContextManager[object]:
    """Context manager for a forward pass. A compiled one always uses `torch.autocast`."""
    stack = contextlib.ExitStack()
    if precision == "bf16":
        stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        if device.type == "cpu" and not compiled and not multiplies_bf16():
            stack.enter_context(_RoundedProducts())
    return stack


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products of bf16 numbers."""
    known = (torch.cpu._is_avx512_bf16_supported, torch.cpu._is_amx_tile_supported)
    return any(supported() for supported in known) or torch.backends.mkldnn.is_acl_available()


class _RoundedProducts(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.linear:
            return rounded_linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def rounded_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear` as bf16 hardware computes it; gradients are rounded in the same places."""
    with torch.autocast("cpu", enabled=False):
        bias = None if bias is None else _round(bias)
        return functional.linear(_round(input), _round(weight), bias).bfloat16()


def _round(x: Tensor) -> Tensor:
    return x.bfloat16().float()
