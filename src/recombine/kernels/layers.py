"""Dense layers with a sigmoid after each in C (`layers.c`), for sequences of different lengths: their padding costs nothing.

It computes what `recombine.tasks.sequences.functions.apply_layers` defines, up to rounding, without gradients. Running sums
and cleared padding have the bits of torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.kernels.compiler import open_kernel

MAX_WIDTH, MAX_LAYERS = 256, 4  # as in layers.c
Layer = tuple[Float[Tensor, "_ _"], Float[Tensor, " _"]]  # weight (output, input) and bias


class _Problem(ctypes.Structure):
    """`problem` of layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "lengths")),
        *((name, ctypes.c_void_p * MAX_LAYERS) for name in ("weights", "biases")),
        ("out", ctypes.c_void_p),
        ("widths", ctypes.c_int64 * (MAX_LAYERS + 1)),
        *((name, ctypes.c_int64) for name in ("num_layers", "rows", "tokens", "threads")),
    )


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    in_place = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3]
    functions: dict[str, Sequence[Any]] = {
        "recombine_apply_layers": [ctypes.POINTER(_Problem)],
        "recombine_sum_tokens": in_place,
        "recombine_clear_padding": in_place,
    }
    return open_kernel("layers.c", ["cpu_vector.h"], functions)


def supports(x: Tensor, layers: Sequence[Layer]) -> bool:
    """Whether `apply_layers` takes these; the first call compiles the kernel."""
    tensors = [x, *(tensor for layer in layers for tensor in layer)]
    return (
        0 < len(layers) <= MAX_LAYERS
        and all(type(tensor) is Tensor and tensor.dtype == torch.float32 for tensor in tensors)
        and all(tensor.device.type == "cpu" and not tensor.requires_grad for tensor in tensors)
        and max(x.shape[-1], *(len(bias) for _, bias in layers)) <= MAX_WIDTH
        and not isinstance(open_library(), str)
    )


def apply_layers(
    x: Float[Tensor, "rows tokens input"], lengths: Int[Tensor, " rows"], layers: Sequence[Layer]
) -> Float[Tensor, "rows tokens output"]:
    """The last layer's values for the first `lengths` tokens of each row, and 0 for the others."""
    rows, tokens, _ = x.shape
    shortest, longest = lengths.aminmax()
    assert (len(lengths), lengths.dtype) == (rows, torch.int64)
    assert shortest >= 0
    assert longest <= tokens
    widths = [x.shape[2], *(len(bias) for _, bias in layers)]
    assert [weight.shape for weight, _ in layers] == [(outputs, inputs) for inputs, outputs in pairwise(widths)]
    kept = [x.contiguous(), lengths.contiguous(), *(tensor.contiguous() for layer in layers for tensor in layer)]
    out = x.new_empty(rows, tokens, widths[-1])
    problem = _Problem(x=kept[0].data_ptr(), lengths=kept[1].data_ptr(), out=out.data_ptr())
    for number in range(len(layers)):
        problem.weights[number], problem.biases[number] = (kept[2 + 2 * number + i].data_ptr() for i in range(2))
    for number, width in enumerate(widths):
        problem.widths[number] = width
    problem.num_layers, problem.rows, problem.tokens = len(layers), rows, tokens
    problem.threads = max(1, min(rows, torch.get_num_threads()))
    library = open_library()
    assert not isinstance(library, str), library
    library.recombine_apply_layers(ctypes.byref(problem))
    return out


def changes_in_place(x: Tensor, lengths: Tensor) -> bool:
    """Whether `sum_tokens` and `clear_padding` take these; the first call compiles the kernel."""
    return (
        type(x) is Tensor
        and x.dtype == torch.float32
        and x.device.type == lengths.device.type == "cpu"
        and not x.requires_grad
        and x.is_contiguous()
        and x.shape[-1] <= MAX_WIDTH
        and not isinstance(open_library(), str)
    )


def sum_tokens(
    x: Float[Tensor, "rows tokens features"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows tokens features"]:
    """Sums over the tokens so far, in place, as `cumsum_` gives them; what is behind `lengths` tokens stays as it is."""
    return _change("recombine_sum_tokens", x, lengths)


def clear_padding(
    x: Float[Tensor, "rows tokens features"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows tokens features"]:
    """Multiply by 0 what is behind `lengths` tokens, in place."""
    return _change("recombine_clear_padding", x, lengths)


def _change(function: str, x: Tensor, lengths: Tensor) -> Tensor:
    assert len(lengths) == len(x)
    kept = lengths.contiguous()
    getattr(open_library(), function)(x.data_ptr(), kept.data_ptr(), *x.shape)
    return x
