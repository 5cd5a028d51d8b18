"""Dense layers with a sigmoid after each in C (`layers.c`), for sequences of different lengths: padding costs nothing.

It computes what `recombine.tasks.sequences.functions.apply_layers` defines, up to rounding, without gradients. Running sums
and cleared padding have the bits of torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.foundation.native import empty_block, open_kernel, pack_arguments

MAX_WIDTH, MAX_LAYERS = 256, 4  # as in layers.c
Layer = tuple[Float[Tensor, "_ _"], Float[Tensor, " _"]]  # weight (output, input) and bias


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    address, number = ctypes.c_void_p, ctypes.c_int64
    functions: dict[str, Sequence[Any]] = {
        "recombine_apply_layers": [address],
        "recombine_sum_layers": [address, address],
        "recombine_clear_padding": [address, address, number, number, number],
    }
    return open_kernel(Path(__file__).with_suffix(".c"), functions)


def supports(x: Tensor, layers: Sequence[Layer]) -> bool:
    """Whether `apply_layers` accepts these; the first call compiles the kernel."""
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
    problem, kept = _pack_layers(x, lengths, layers)
    _check(_library().recombine_apply_layers(problem))
    return kept[0]


def sum_layers(
    x: Float[Tensor, "rows tokens input"],
    lengths: Int[Tensor, " rows"],
    embed: Sequence[Layer],
    readout: Sequence[Layer],
) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens output"]]:
    """`embed`, sums over the tokens so far, `readout`: the sums and the last values, 0 after `lengths` tokens."""
    first, kept = _pack_layers(x, lengths, embed)
    second, kept_too = _pack_layers(kept[0], lengths, readout)
    _check(_library().recombine_sum_layers(first, second))
    return kept[0], kept_too[0]


def _check(failed: int) -> None:
    assert failed != 1, "a length is negative or larger than the number of tokens"
    if failed:
        raise MemoryError("not enough memory for the values of a layer")


def _pack_layers(
    x: Tensor, lengths: Tensor, layers: Sequence[Layer]
) -> tuple[ctypes.Array[ctypes.c_int64], list[Tensor]]:
    """`problem` of layers.c, and the tensors whose memory it points to, the output first."""
    rows, tokens, _ = x.shape
    widths = [x.shape[2], *(len(bias) for _, bias in layers)]
    assert (lengths.shape, lengths.dtype, lengths.device.type) == ((rows,), torch.int64, "cpu")
    assert [weight.shape for weight, _ in layers] == [(outputs, inputs) for inputs, outputs in pairwise(widths)]
    out = empty_block(rows, tokens, widths[-1])
    x, lengths = x.contiguous(), lengths.contiguous()
    weights, biases = ([tensor.contiguous() for tensor in kind] for kind in zip(*layers, strict=True))
    none = [None] * (MAX_LAYERS - len(layers))  # places of layers that are not there
    threads = max(1, min(rows, torch.get_num_threads()))
    sizes = (*widths, *none, len(layers), rows, tokens, threads)
    return pack_arguments(x, lengths, *weights, *none, *biases, *none, out, *sizes), [
        out,
        x,
        lengths,
        *weights,
        *biases,
    ]


def _library() -> ctypes.CDLL:
    library = open_library()
    assert not isinstance(library, str), library
    return library


def supports_clear_padding(x: Tensor, lengths: Tensor) -> bool:
    """Whether `clear_padding` accepts these; the first call compiles the kernel."""
    return (
        type(x) is Tensor
        and x.dtype == torch.float32
        and lengths.dtype == torch.int64
        and x.device.type == lengths.device.type == "cpu"
        and not x.requires_grad
        and x.is_contiguous()
        and x.shape[-1] <= MAX_WIDTH
        and not isinstance(open_library(), str)
    )


def clear_padding(
    x: Float[Tensor, "rows tokens features"], lengths: Int[Tensor, " rows"]
) -> Float[Tensor, "rows tokens features"]:
    """Multiply the tokens after the first `lengths` by 0, in place."""
    assert len(lengths) == len(x)
    kept = lengths.contiguous()
    _check(_library().recombine_clear_padding(x.data_ptr(), kept.data_ptr(), *x.shape))
    return x
