"""The cache of an attention layer, for sequences that are generated one token at a time.

In general it holds all keys and values. Linear attention needs only the sum of their products, whose size does not depend on
the length (`linear.py`). The outputs are those of attention over the whole sequence.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from recombine.attention import linear
from recombine.attention.definition import AttentionOptions
from recombine.attention.dispatch import attend, supports_linear
from recombine.foundation.errors import InputError


class AttentionCache:
    """All keys and values so far, in tensors that double when they are full; `length` is the number of tokens."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def attend(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], **options: Any
    ) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q keys"] | None]:
        """Append tokens and return what `dispatch.attend` returns for queries that follow all earlier tokens."""
        end = self.length + k.shape[1]
        self._keys, self._values = self._append(self._keys, k, end), self._append(self._values, v, end)
        self.length = end
        return attend(q, self._keys[:, :end], self._values[:, :end], **options)

    def _append(self, memory: Tensor | None, new: Tensor, end: int) -> Tensor:
        if memory is None or memory.shape[1] < end:
            grown = new.new_zeros(new.shape[0], max(2 * end, 16), *new.shape[2:])
            if memory is not None:
                grown[:, : self.length] = memory[:, : self.length]
            memory = grown
        memory[:, self.length : end] = new
        return memory


class LinearCache(AttentionCache):
    """The sum of products of keys and values.

    Codes, code maps, dropout and masks need the keys: if the first call has any of these, keys and values are cached instead.
    If a later call has them, that is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._total: Float[Tensor, "b h d e"] | None = None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, code_map: Any = None, return_codes: bool = True, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        chosen = AttentionOptions(**options)
        needs_keys = return_codes or code_map is not None or chosen.mask is not None
        needs_keys = needs_keys or not supports_linear(q, k, v, chosen)
        if self._keys is not None or (needs_keys and self.length == 0):
            return super().attend(q, k, v, code_map=code_map, return_codes=return_codes, **options)
        if needs_keys:
            raise InputError(
                f"the cache holds a sum over {self.length} tokens: expected one that keeps their keys "
                "(keep_keys=True), as codes, code maps, dropout and masks need them"
            )
        out = linear.attend(q, k, v, chosen)
        if self._total is not None:
            out = out + linear.read_sum(q, self._total)
        added = linear.sum_products(k, v, chosen.value_network)
        self._total = added if self._total is None else self._total + added
        self.length += k.shape[1]
        return out, None


def build_cache(normalisation: str, value_network: str, *, has_bias: bool, keep_keys: bool = False) -> AttentionCache:
    """The smallest cache that a kind of attention needs; with `keep_keys` one that supports every call."""
    if normalisation == "none" and value_network in linear.VALUE_NETWORKS and not (has_bias or keep_keys):
        return LinearCache()
    return AttentionCache()
