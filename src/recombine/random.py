"""Counter-based random numbers: batch i of a split is a pure function of (task, seed, split, i).

Number j of row r in draw d is the output of SplitMix64 (Steele, Lea & Flood 2014) at counter r * width + j under a key
hashed from (task, seed, split, i, d). The integers are the same on every device and library version, no two splits share
a stream, resuming needs no saved generator, and a process can generate only its own rows of the global batch.

`mix` defines the bits in torch. On the CPU `random.c` computes the same integers in one pass, if there is a compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.foundation.errors import NEGLIGIBLE, require_memory
from recombine.foundation.native import empty_block, open_kernel, pack_arguments

GOLDEN = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
MAX_CHOICES = 16  # room for the smallest numbers of a row in random.c
MIN_NUMBERS_FOR_THREADS = 1 << 14
BYTES_PER_NUMBER = 16  # of a draw: its bits, and the counters that they are made from

Part = tuple[tuple[object, ...], range]  # a key, and the rows that are drawn under it


def mix(counter: Int[Tensor, "..."], key: int | Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """64 random bits for each counter, as int64; the key is an int64 too."""
    bits = counter * _signed(GOLDEN) + key
    bits = (bits ^ _shift_right(bits, 30)) * _signed(MIX_1)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(MIX_2)
    return bits ^ _shift_right(bits, 31)


def advance_key(key: Int[Tensor, ""], count: int) -> Int[Tensor, ""]:
    """The key under which counter 0 gives the bits of counter `count` under `key`."""
    return key + _signed(count * GOLDEN % 2**64)


def hash_key(*parts: object) -> int:
    """A key for objects with a stable `repr`, as a signed 64-bit integer."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _shift_right(bits: Int[Tensor, "*shape"], places: int) -> Int[Tensor, "*shape"]:
    """Logical shift: torch's own shift of int64 copies the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


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
        if self._draws_in_c():
            return self._draw_in_c("bits", shape)
        keys, count = self._next_keys(shape)
        counters = torch.arange(count, device=self.device)
        return mix(counters, torch.tensor(keys, device=self.device)[:, None]).view(len(self), *shape)

    def uniform(self, *shape: int) -> Float[Tensor, "rows ..."]:
        """Uniform in [0, 1), multiples of 2^-24, float32."""
        if self._draws_in_c():
            return self._draw_in_c("uniform", shape, dtype=torch.float32)
        return _shift_right(self.bits(*shape), 40).to(torch.float32).mul_(2.0**-24)

    def normal(self, *shape: int) -> Float[Tensor, "rows ..."]:
        """Standard normal, float64, by the inverse of the distribution function."""
        return torch.special.ndtri(self.uniform(*shape).double() + 2.0**-25)  # strictly between 0 and 1

    def uniform_sequences(
        self, lengths: Int[Tensor, " rows"], num_tokens: int, width: int
    ) -> Float[Tensor, "rows num_tokens width"]:
        """`uniform(num_tokens, width)` for the first `lengths` tokens of each row, and 0 for the others."""
        if self._draws_in_c():
            assert (len(lengths), lengths.dtype) == (len(self), torch.int64)
            drawn = lengths.contiguous().clamp(0, num_tokens)
            numbers = (drawn.data_ptr(), num_tokens * width, width)
            return self._draw_in_c("sequences", (num_tokens, width), *numbers, dtype=torch.float32)
        real = torch.arange(num_tokens, device=self.device) < lengths[:, None]
        return self.uniform(num_tokens, width) * real[..., None]

    def integers(self, high: int, *shape: int) -> Int[Tensor, "rows ..."]:
        """Uniform in 0..high-1; the bias of multiply-and-shift is below high / 2^32."""
        assert 0 < high < 2**31
        if self._draws_in_c():
            return self._draw_in_c("integers", shape, high)
        return (_shift_right(self.bits(*shape), 32) * high) >> 32

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
        if not self._draws_in_c() or count > MAX_CHOICES:
            return self.permutations(size)[:, :count]
        assert 0 < count <= size
        return self._draw_in_c("orders", (size,), size, count, num_kept=count)

    def _draws_in_c(self) -> bool:
        return self.device.type == "cpu" and is_available()

    def _draw_in_c(
        self,
        name: str,
        shape: tuple[int, ...],
        *numbers: int,
        dtype: torch.dtype = torch.int64,
        num_kept: int | None = None,
    ) -> Tensor:
        """One draw by `recombine_draw_<name>`; with `num_kept`, of which so many numbers per row are kept."""
        keys, count = self._next_keys(shape)
        words = torch.tensor(keys, dtype=torch.int64, device="cpu")
        out = empty_block(len(self), *(shape if num_kept is None else (num_kept,)), dtype=dtype)
        threads = torch.get_num_threads() if len(keys) * count >= MIN_NUMBERS_FOR_THREADS else 1
        problem = pack_arguments(words, out, len(keys), count, threads)
        getattr(open_library(), f"recombine_draw_{name}")(problem, *numbers)
        return out

    def _next_keys(self, shape: tuple[int, ...]) -> tuple[list[int], int]:
        """The keys of the next draw, one per part and advanced to its first row, and how many numbers each of them gives."""
        width = math.prod(shape)
        num_bytes = BYTES_PER_NUMBER * len(self) * width
        if num_bytes > NEGLIGIBLE:
            require_memory(num_bytes, f"a draw of {len(self):,} × {width:,} random numbers")
        keys = [hash_key(*key, self.num_draws) + rows.start * width * GOLDEN for key, rows in self.parts]
        self.num_draws += 1
        return [_signed(key % 2**64) for key in keys], len(self.parts[0][1]) * width


def _join_rows(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same rows in fewer parts, where rows of one key follow one another; parts stay equally long."""
    joined: list[Part] = []
    for key, rows in parts:
        if joined and joined[-1][0] == key and joined[-1][1].stop == rows.start:
            rows = range(joined.pop()[1].start, rows.stop)
        joined.append((key, rows))
    return tuple(joined) if len({len(rows) for _, rows in joined}) == 1 else tuple(parts)


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled `random.c`, or why there is none, in one line."""
    problem, number = ctypes.c_void_p, ctypes.c_int64
    numbers = {"bits": 0, "uniform": 0, "sequences": 3, "integers": 1, "orders": 2}
    functions = {f"recombine_draw_{name}": [problem, *[number] * count] for name, count in numbers.items()}
    return open_kernel(Path(__file__).with_suffix(".c"), functions)


def is_available() -> bool:
    """Whether the kernel is compiled, or can be; the first call compiles it."""
    return not isinstance(open_library(), str)
