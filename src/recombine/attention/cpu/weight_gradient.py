"""Gradients of a dense layer's weight and bias in one pass of C (`weight_gradient.c`), in float32.

The product sums over all rows of a batch and is as small as the weight. Libraries for general products reach three quarters
of their speed on it (`benchmarks/dense_products.py`) and leave the bias to another pass.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.foundation.native import open_kernel


class _Problem(ctypes.Structure):
    """`problem` of weight_gradient.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "grad_out", "grad_weight", "grad_bias")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs", "x_stride", "grad_stride", "threads")),
    )


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    functions = {"recombine_weight_gradient": [ctypes.POINTER(_Problem)]}
    return open_kernel(Path(__file__).with_suffix(".c"), functions)


def differentiate(
    x: Float[Tensor, "rows input"], grad_out: Float[Tensor, "rows output"], *, needs_bias: bool
) -> tuple[Float[Tensor, "output input"], Float[Tensor, " output"] | None]:
    """`grad_out^T x`, and the sum of `grad_out` over its rows; without a compiler by torch."""
    library = open_library()
    if isinstance(library, str):
        return grad_out.t() @ x, grad_out.sum(dim=0) if needs_bias else None
    x, grad_out = (tensor if tensor.stride(1) == 1 else tensor.contiguous() for tensor in (x, grad_out))
    grad_weight = x.new_empty(grad_out.shape[1], x.shape[1])
    grad_bias = x.new_empty(grad_out.shape[1]) if needs_bias else None
    problem = _Problem(x=x.data_ptr(), grad_out=grad_out.data_ptr(), grad_weight=grad_weight.data_ptr())
    problem.grad_bias = None if grad_bias is None else grad_bias.data_ptr()
    problem.rows, problem.inputs, problem.outputs = *x.shape, grad_out.shape[1]
    problem.x_stride, problem.grad_stride = x.stride(0), grad_out.stride(0)
    problem.threads = torch.get_num_threads()
    if library.recombine_weight_gradient(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the gradient of a weight")
    return grad_weight, grad_bias
