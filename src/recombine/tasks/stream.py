"""Counter-based random streams: batch i of a split is a pure function of (task, seed, split, i).

Number j of row r in draw d is the SplitMix64 output (Steele, Lea & Flood 2014) at counter r * width + j under a key
hashed from (task, seed, split, i, d). The integers are the same on every device and library version, no two splits share
a stream, resuming needs no saved generator, and a process can generate only its own rows of the global batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.kernels import draws
from recombine.memory import NEGLIGIBLE, require_memory

_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK = 1 << 14
BYTES_PER_NUMBER = 16  # of a draw: its bits, and the counters they are made from
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Part = tuple[tuple[object, ...], range]  # a key, and the rows that are drawn under it


class Stream:
    """Random numbers for a range of rows. Each call is one draw with its own key."""

    def __init__(self, *key: object, rows: range, device: torch.device | str = "cpu") -> None:
        self.parts: tuple[Part, ...] = ((key, rows),)
        self.device = torch.device(device)
        self.num_draws = 0

    @classmethod
    def chain(cls, streams: Sequence[Stream]) -> Stream:
        """Concatenate the rows of several streams. Each row draws the same numbers as in its own stream.

        The streams must have the same number of rows and the same device, and must not have been drawn from.
        """
        chained = cls(rows=range(0), device=streams[0].device)
        chained.parts = _join_rows([part for stream in streams for part in stream.parts])
        assert len({len(rows) for _, rows in chained.parts}) == 1
        assert all((stream.device, stream.num_draws) == (chained.device, 0) for stream in streams)
        return chained

    @property
    def key(self) -> tuple[object, ...]:
        """The key of a stream that is not a chain."""
        ((key, _),) = self.parts
        return key

    @property
    def rows(self) -> range:
        """The rows of a stream that is not a chain."""
        ((_, rows),) = self.parts
        return rows

    def __len__(self) -> int:
        """Number of rows."""
        return sum(len(rows) for _, rows in self.parts)

    def bits(self, *shape: int) -> Int[Tensor, "rows ..."]:
        """64 random bits per entry, for every row."""
        mix = draws.draw_bits if self._draws_in_c() else mix_on_cpu
        if self.device.type != "cpu":
            mix = partial(mix_on_device, device=self.device)
        return self._draw(mix, shape).view(len(self), *shape)

    def uniform(self, *shape: int) -> Float[Tensor, "rows ..."]:
        """Uniform in [0, 1), multiples of 2^-24, float32."""
        if self._draws_in_c():
            return self._draw(draws.draw_uniform, shape).view(len(self), *shape)
        return _shift_right(self.bits(*shape), 40).to(torch.float32).mul_(2.0**-24)

    def uniform_sequences(
        self, lengths: Int[Tensor, " rows"], num_tokens: int, width: int
    ) -> Float[Tensor, "rows num_tokens width"]:
        """`uniform(num_tokens, width)` for the first `lengths` tokens of each row, and 0 behind them."""
        if self._draws_in_c():
            draw = partial(draws.draw_sequences, lengths=lengths, shape=(num_tokens, width))
            return self._draw(draw, (num_tokens, width)).view(len(self), num_tokens, width)
        real = torch.arange(num_tokens, device=self.device) < lengths[:, None]
        return self.uniform(num_tokens, width) * real[..., None]

    def integers(self, high: int, *shape: int) -> Int[Tensor, "rows ..."]:
        """Uniform in 0..high-1; the bias of multiply-and-shift is below high / 2^32."""
        assert 0 < high < 2**31
        if self._draws_in_c():
            return self._draw(partial(draws.draw_integers, high=high), shape).view(len(self), *shape)
        return (_shift_right(self.bits(*shape), 32) * high) >> 32

    def _draws_in_c(self) -> bool:
        return self.device.type == "cpu" and draws.is_available()

    def _draw(self, draw: Callable[[Sequence[int], int], Tensor], shape: tuple[int, ...]) -> Tensor:
        """One draw: `draw` takes the keys, moved to their first row, and how many numbers each of them gives."""
        width = math.prod(shape)
        num_bytes = BYTES_PER_NUMBER * len(self) * width
        if num_bytes > NEGLIGIBLE:
            require_memory(num_bytes, f"a draw of {len(self):,} × {width:,} random numbers")
        keys = [(self._hash(key) + rows.start * width * _GOLDEN) % 2**64 for key, rows in self.parts]
        self.num_draws += 1
        return draw(keys, len(self.parts[0][1]) * width)

    def _hash(self, key: tuple[object, ...]) -> int:
        digest = hashlib.sha256(repr((*key, self.num_draws)).encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def digits(self, radices: Sequence[int], *shape: int) -> tuple[Int[Tensor, "rows ..."], ...]:
        """For each radix, a tensor of independent uniform numbers below it. One word serves as many as its bits allow.

        The leading B bits of a word are a fraction, written out in mixed radix (Brackett-Rozinsky & Lemire 2024). Every
        joint outcome of the N digits of a word has probability 1/N within a factor of 1 +- N / 2^B, and N <= 2^(B - 20).
        """
        num_bits = 63 - (max(radices) - 1).bit_length()
        assert min(radices) > 0
        assert max(radices) <= 1 << 21
        digits, room = [], 0
        for radix in radices:
            if radix > room:
                fraction = _shift_right(self.bits(*shape), 64 - num_bits)
                room = 1 << (num_bits - 20)
            room //= radix
            scaled = fraction * radix
            digits.append(scaled >> num_bits)
            fraction = scaled & ((1 << num_bits) - 1)
        return tuple(digits)

    def permutations(self, size: int, *shape: int) -> Int[Tensor, "rows ... size"]:
        """Uniformly random orders of 0..size-1."""
        return self.bits(*shape, size).argsort(dim=-1)

    def choices(self, size: int, count: int) -> Int[Tensor, "rows count"]:
        """The first `count` of a random order of 0..size-1: different numbers, the beginning of `permutations(size)`."""
        if not self._draws_in_c() or count > draws.MOST_KEPT:
            return self.permutations(size)[:, :count]
        return self._draw(partial(draws.draw_orders, size=size, kept=count), (size,)).view(len(self), count)


def _join_rows(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same rows in fewer parts, where rows of one key follow one another; parts stay equally long."""
    joined: list[Part] = []
    for key, rows in parts:
        if joined and joined[-1][0] == key and joined[-1][1].stop == rows.start:
            rows = range(joined.pop()[1].start, rows.stop)
        joined.append((key, rows))
    return tuple(joined) if len({len(rows) for _, rows in joined}) == 1 else tuple(parts)


def mix_on_cpu(offsets: Sequence[int], count: int) -> Int[Tensor, "offsets count"]:
    """SplitMix64 at counters 0 .. count - 1, under each offset, where there is no compiler.

    Works in blocks that fit the cache, with unsigned shifts, which torch lacks: twice as fast as `mix_on_device`.
    """
    counter = np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)
    mixed = counter + np.array(offsets, dtype=np.uint64)[:, None]
    flat = mixed.reshape(-1)
    shifted = np.empty(min(len(flat), _BLOCK), dtype=np.uint64)
    for first in range(0, len(flat), _BLOCK):
        block = flat[first : first + _BLOCK]
        spare = shifted[: len(block)]
        for places, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
            np.bitwise_xor(block, np.right_shift(block, np.uint64(places), out=spare), out=block)
            if factor != 1:
                np.multiply(block, np.uint64(factor), out=block)
    return torch.from_numpy(mixed.view(np.int64))


def mix_on_device(offsets: Sequence[int], count: int, device: torch.device) -> Int[Tensor, "offsets count"]:
    """The same integers, in torch."""
    counter = torch.arange(count, dtype=torch.int64, device=device).mul_(_signed(_GOLDEN))
    mixed = counter + torch.tensor([_signed(offset) for offset in offsets], device=device)[:, None]
    mixed.bitwise_xor_(_shift_right(mixed, 30)).mul_(_signed(_MIX_1))
    mixed.bitwise_xor_(_shift_right(mixed, 27)).mul_(_signed(_MIX_2))
    return mixed.bitwise_xor_(_shift_right(mixed, 31))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift_right(bits: Tensor, places: int) -> Tensor:
    """Logical shift: torch's own shift of int64 copies the sign."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1)
