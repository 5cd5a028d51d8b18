"""GELU (tanh form) of a dense layer on CPUs: `gelu(x W^T + b)` with bias and activation in one pass of C (`gelu.c`).

torch's own way copies the bias into the output of the matrix product, takes a tanh, and sums the gradient of the bias in a
third pass. The numbers are the same up to rounding.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.foundation.native import open_kernel

DTYPES = (torch.float32, torch.bfloat16)


class _Problem(ctypes.Structure):
    """`problem` of gelu.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "out", "grad_out", "grad_hidden", "bias", "grad_bias")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "bf16", "threads")),
    )


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    functions = ("recombine_gelu_forward", "recombine_gelu_backward")
    return open_kernel(Path(__file__).with_suffix(".c"), {name: [ctypes.POINTER(_Problem)] for name in functions})


def supports(x: Tensor, bias: Tensor) -> bool:
    """Whether the kernel takes these, and there is one."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return (
        x.device.type == bias.device.type == "cpu"
        and x.numel() > 0
        and dtype in DTYPES
        and bias.dtype == torch.float32
        and not isinstance(open_library(), str)
    )


def add_gelu(hidden: Float[Tensor, "*batch output"], bias: Float[Tensor, " output"]) -> Float[Tensor, "*batch output"]:
    """`gelu(hidden + bias)` where `supports` says so."""
    return _Gelu.apply(hidden, bias)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, bias):
        hidden = hidden.contiguous()
        bias = bias.contiguous()
        ctx.save_for_backward(hidden, bias)
        out = torch.empty_like(hidden)
        _run("recombine_gelu_forward", hidden, bias, out=out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        hidden, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: torch's own first one has it
            grad_hidden = torch.ops.aten.gelu_backward(grad_out, hidden + bias, approximate="tanh")
            return grad_hidden.to(hidden.dtype), grad_hidden.to(bias.dtype).flatten(0, -2).sum(dim=0)
        grad_hidden, grad_bias = torch.empty_like(hidden), torch.empty_like(bias)
        tensors = {"grad_out": grad_out.contiguous(), "grad_hidden": grad_hidden, "grad_bias": grad_bias}
        _run("recombine_gelu_backward", hidden, bias, **tensors)
        return grad_hidden, grad_bias


def _run(function: str, hidden: Tensor, bias: Tensor, **tensors: Tensor) -> None:
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    problem = _Problem(hidden=hidden.data_ptr(), bias=bias.data_ptr(), **pointers)
    problem.width = hidden.shape[-1]
    problem.rows = hidden.numel() // problem.width
    problem.bf16, problem.threads = hidden.dtype == torch.bfloat16, torch.get_num_threads()
    library = open_library()
    assert not isinstance(library, str)
    if getattr(library, function)(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the gradient of a bias")
