"""Counter-based random bits: the SplitMix64 output (Steele, Lea & Flood 2014) at a counter under a key.

The same integers come out on every device, in every library version and in C (`kernels/cpu_mask.h`), in any order and any
part of them at a time.
"""

from __future__ import annotations

import hashlib

from jaxtyping import Int
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(counter: Int[Tensor, "*shape"], key: int | Int[Tensor, ""]) -> Int[Tensor, "*shape"]:
    """64 random bits for each counter, as int64; the key is one too."""
    bits = counter * _signed(_GOLDEN) + key
    bits = (bits ^ shift_right(bits, 30)) * _signed(_MIX_1)
    bits = (bits ^ shift_right(bits, 27)) * _signed(_MIX_2)
    return bits ^ shift_right(bits, 31)


def advance_key(key: Int[Tensor, ""], count: int) -> Int[Tensor, ""]:
    """The key under which counter 0 gives what counter `count` gives under `key`."""
    return key + _signed(count * _GOLDEN % 2**64)


def hash_key(*parts: object) -> int:
    """A key for whatever can be written down, as a signed 64-bit integer."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def shift_right(bits: Int[Tensor, "*shape"], places: int) -> Int[Tensor, "*shape"]:
    """Logical shift: torch's own shift of int64 copies the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
