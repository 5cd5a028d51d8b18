"""Memory of large tensors, used again when they are gone.

The system takes a large block back when it is freed, and gives a new one page by page, each cleared at its first use. For a
group of training batches that takes longer than filling it with numbers. A generator makes groups of the same size again and
again, so their blocks are kept: `empty` is `torch.empty` in a block of the same size that nobody uses any more, if there is
one.

A block is in use as long as a tensor, a view or an array of it is: their storage owns an array, whose end returns the block.
It can come at any time, also from the garbage collector: so only keys are listed, which creates nothing that could start it.
Such tensors are like any other, except that they cannot be resized.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from torch import Tensor

SMALLEST, LARGEST = 1 << 16, 1 << 24
"""Bytes of a block that is kept. The allocator itself keeps smaller ones; for larger ones the cost hardly matters."""
MOST_KEPT = 1 << 26
"""Bytes of all blocks that nobody uses. More are given back, the oldest first."""


class _User(weakref.ref[np.ndarray]):
    """The array that uses a block; weak, so that its end is noticed. `weakref.finalize` would be slow."""

    __slots__ = ("block",)
    block: Tensor


_used: dict[int, _User] = {}
_free: dict[int, Tensor] = {}  # the oldest first


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor with arbitrary content, on the CPU even where another device is the default."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if not SMALLEST <= num_bytes <= LARGEST:
        return torch.empty(shape, dtype=dtype, device="cpu")
    block = _take(num_bytes)
    memory = block.numpy()
    user = _User(memory, _give_back)
    user.block = block
    _used[id(block)] = user
    return torch.from_numpy(memory).view(dtype).view(shape)


def _take(num_bytes: int) -> Tensor:
    """The free block of this size that was used last, or a new one."""
    for key in reversed(list(_free)):
        block = _free.get(key)
        if block is not None and len(block) == num_bytes and _free.pop(key, None) is not None:  # no thread was faster
            return block
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")


def _give_back(user: _User) -> None:
    _free[id(user.block)] = _used.pop(id(user.block)).block
    num_bytes = 0
    for key in reversed(list(_free)):
        other = _free.get(key)
        num_bytes += 0 if other is None else len(other)
        if num_bytes > MOST_KEPT:
            _free.pop(key, None)
