"""What attention remembers of the tokens before, when a sequence is generated one token at a time.

In general these are all keys and values. Linear attention needs only the sum of their products, whose size does not depend
on the length (`kernels/linear.py`). Both give the same outputs as attention over the whole sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.kernels import attend, linear
from recombine.kernels.linear import LinearState


class AttentionCache(ABC):
    """The memory of one layer; `length` is the number of tokens it has seen."""

    def __init__(self) -> None:
        self.length = 0

    @abstractmethod
    def attend(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b q h d"], v: Float[Tensor, "b q h e"], **options: Any
    ) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"] | None]:
        """What `kernels.attend` returns for these tokens after all earlier ones; remembers them."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of the memory."""


class KeyValueCache(AttentionCache):
    """All keys and values so far, in tensors that double when they are full."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        end = self.length + k.shape[1]
        self._keys, self._values = self._store(self._keys, k, end), self._store(self._values, v, end)
        self.length = end
        return attend(q, self._keys[:, :end], self._values[:, :end], **options)

    def _store(self, memory: Tensor | None, new: Tensor, end: int) -> Tensor:
        if memory is None or memory.shape[1] < end:
            grown = new.new_zeros(new.shape[0], max(2 * end, 16), *new.shape[2:])
            if memory is not None:
                grown[:, : self.length] = memory[:, : self.length]
            memory = grown
        memory[:, self.length : end] = new
        return memory

    @property
    def num_bytes(self) -> int:
        return sum(memory.nbytes for memory in (self._keys, self._values) if memory is not None)


class LinearCache(AttentionCache):
    """The sum of products of keys and values. There are no codes to return."""

    def __init__(self, value_network: str) -> None:
        super().__init__()
        self._state = LinearState(value_network)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        before = self._state.read(q) if self.length else torch.zeros_like(v)
        wanted = ("normalisation", "value_network", "causal")
        within = linear.attend(q, k, v, **{name: options[name] for name in wanted})
        self._state.append(k, v)
        self.length += k.shape[1]
        return before + within, None

    @property
    def num_bytes(self) -> int:
        return 0 if self._state.total is None else self._state.total.nbytes


def build_cache(normalisation: str, value_network: str, *, has_bias: bool) -> AttentionCache:
    """The smallest memory that a kind of attention needs."""
    if normalisation == "none" and value_network in linear.VALUE_NETWORKS and not has_bias:
        return LinearCache(value_network)
    return KeyValueCache()
