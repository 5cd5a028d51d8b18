"""Numerical precision of a training step: float32, or bf16 for dense layers and the activations between them.

With bf16 the operands of a dense layer are rounded to 8 bits of significand, products are summed in float32, and the
result is rounded again; parameters, attention scores, loss and optimizer stay in float32. On hardware with bf16
instructions this is `torch.autocast`. On other CPUs torch emulates them one number at a time, about twenty times slower
than float32, so there the same rounding is applied around float32 products.

Where a run is computed, and whether by deterministic algorithms only.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from recombine.foundation.errors import InputError
from recombine.training.processes import local_rank, num_processes

Precision = Literal["float32", "bf16"]


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
    def __torch_function__(self, function, types, args=(), kwargs=None):
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


_log = logging.getLogger(__name__)


def resolve_device(device: str) -> torch.device:
    """The device with a name; `auto` is CUDA where torch finds it, otherwise the CPU.

    Under `torchrun` each process on a machine takes the CUDA device with its own number.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and num_processes() > 1:
        device = f"cuda:{local_rank()}"
    try:
        torch.empty(0, device=device)
        torch_device = torch.device(device)
    except (RuntimeError, AssertionError):
        raise InputError(
            f"device {device!r} is not available: expected auto, cpu, or an accelerator that torch finds"
        ) from None
    if torch_device.type == "mps":
        _log.warning("device mps is untested: compare a short run with --device cpu before you rely on it")
    return torch_device


@contextlib.contextmanager
def use_deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let torch use only algorithms that give the same bits in every run, or raise an error where it has none."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is not deterministic
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
