"""Random numbers of a stream in C (`draws.c`), the same integers as those of `recombine.splitmix`.

One pass instead of one per operation. The functions need a compiled library (`is_available`); without one, the caller
computes the same numbers itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.kernels import recycled
from recombine.kernels.compiler import open_kernel

MOST_KEPT = 16
"""Of the smallest numbers of a row; `draws.c` has room for so many."""
ENOUGH = 1 << 14
"""Numbers from which a second thread pays."""


class _Problem(ctypes.Structure):
    """`problem` of draws.c."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_keys", "count", "threads")),
    )


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    number, address = ctypes.c_int64, ctypes.c_void_p
    arguments: dict[str, list[Any]] = {
        "bits": [],
        "uniform": [],
        "sequences": [address, number, number],
        "integers": [number],
        "orders": [number, number],
    }
    problem = ctypes.POINTER(_Problem)
    return open_kernel("draws.c", [], {f"recombine_draw_{name}": [problem, *more] for name, more in arguments.items()})


def is_available() -> bool:
    """Whether the kernel is compiled, or can be; the first call compiles it."""
    return not isinstance(open_library(), str)


def draw_bits(keys: Sequence[int], count: int) -> Int[Tensor, "keys count"]:
    """The bits at counters 0 .. count - 1 under each key."""
    return _draw("bits", keys, count, recycled.empty(len(keys), count, dtype=torch.int64))


def draw_uniform(keys: Sequence[int], count: int) -> Float[Tensor, "keys count"]:
    """The first 24 of these bits, as a fraction."""
    return _draw("uniform", keys, count, recycled.empty(len(keys), count))


def draw_sequences(
    keys: Sequence[int], count: int, *, lengths: Int[Tensor, " rows"], shape: tuple[int, int]
) -> Float[Tensor, "keys count"]:
    """Rows of such fractions, of the shape (tokens, features); 0 behind the first `lengths` tokens, at most all of them."""
    tokens, width = shape
    assert (len(lengths), lengths.dtype) == (len(keys) * count // (tokens * width), torch.int64)
    kept = lengths.contiguous().clamp(0, tokens)
    return _draw("sequences", keys, count, recycled.empty(len(keys), count), kept.data_ptr(), tokens * width, width)


def draw_integers(keys: Sequence[int], count: int, high: int) -> Int[Tensor, "keys count"]:
    """The first 32 of these bits times `high`, divided by 2^32."""
    return _draw("integers", keys, count, recycled.empty(len(keys), count, dtype=torch.int64), high)


def draw_orders(keys: Sequence[int], count: int, size: int, kept: int) -> Int[Tensor, "keys places"]:
    """Of each `size` consecutive numbers, the places of the `kept` smallest, in order; at most MOST_KEPT of them."""
    assert 0 < kept <= min(size, MOST_KEPT)
    out = recycled.empty(len(keys), count // size * kept, dtype=torch.int64)
    return _draw("orders", keys, count, out, size, kept)


def _draw(name: str, keys: Sequence[int], count: int, out: Tensor, *numbers: int) -> Tensor:
    words = (ctypes.c_uint64 * len(keys))(*keys)
    threads = torch.get_num_threads() if len(keys) * count >= ENOUGH else 1
    problem = _Problem(ctypes.addressof(words), out.data_ptr(), len(keys), count, threads)
    getattr(open_library(), f"recombine_draw_{name}")(ctypes.byref(problem), *numbers)
    return out
