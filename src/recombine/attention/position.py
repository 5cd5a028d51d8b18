"""Position: the T5 relative bias on scores, and the rotary embedding of queries and keys.

Both align queries at the end: with n queries and T keys, the first query sits at position T - n.

Relative bias (Raffel et al. 2020, one-directional): bias[h,q,k] = table[bucket(n), h] with n = max(q - k, 0), so that
all later keys share bucket 0. With m = num_buckets // 2,

    bucket(n) = n                                                                        for n < m
              = min(m + floor(log(n/m) / log(max_distance/m) * (num_buckets - m)), num_buckets - 1)   beyond

Rotary embedding (Su et al. 2021): features i and i + d/2 of a head are the two coordinates of a point, turned by the
angle position * base^(-2i/d); scores then depend on positions only through their difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recombine.foundation.errors import InputError, check_positive


def relative_bucket(distance: int, *, num_buckets: int, max_distance: int) -> int:
    """The bucket of a distance. If the logarithm is within rounding error of a boundary, exact integers decide."""
    num_exact = num_buckets // 2
    if distance < num_exact:
        return distance
    if distance >= max_distance or num_exact == 0:
        return num_buckets - 1
    num_logarithmic = num_buckets - num_exact
    position = math.log(distance / num_exact) / math.log(max_distance / num_exact) * num_logarithmic
    step = math.floor(position)
    border = round(position)
    if abs(position - border) < 1e-9:
        # (distance / m)^L >= (max_distance / m)^border, in whole numbers
        reached = distance**num_logarithmic * num_exact**border >= max_distance**border * num_exact**num_logarithmic
        step = border if reached else border - 1
    return min(num_exact + step, num_buckets - 1)


class RelativeBias(nn.Module):
    """One learned bias per head and bucket of distances, added to the scores."""

    buckets: Int[Tensor, " distance"]

    def __init__(self, num_heads: int, *, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        if max_distance <= num_buckets // 2:
            raise InputError(
                f"max_distance is {max_distance}: expected more than num_buckets // 2 = {num_buckets // 2}, "
                "where the logarithmic buckets begin"
            )
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        # every distance from max_distance on is in the last bucket, so this short table works for any sequence length
        buckets = [
            relative_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
            for distance in range(max_distance + 1)
        ]
        self.register_buffer("buckets", torch.tensor(buckets), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new table of variance 1 / num_buckets."""
        nn.init.normal_(self.table, std=self.table.shape[0] ** -0.5)

    def forward(self, num_queries: int, num_keys: int) -> Float[Tensor, "h q k"]:
        """The bias of the last `num_queries` of `num_keys` positions."""
        keys = torch.arange(num_keys, device=self.table.device)
        queries = torch.arange(num_keys - num_queries, num_keys, device=self.table.device)
        distances = (queries[:, None] - keys[None, :]).clamp(0, self.max_distance)
        return functional.embedding(self.buckets[distances], self.table).permute(2, 0, 1)


class Rotary(nn.Module):
    """Rotate queries and keys by their positions. No parameters, and no buffer that a change of precision could affect."""

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        check_positive(head_dim=head_dim)
        if head_dim % 2 != 0:
            raise InputError(f"head_dim is {head_dim}: expected an even number, because features are rotated in pairs")
        self.head_dim, self.base = head_dim, base

    def forward(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], query_offset: int | None = None
    ) -> tuple[Float[Tensor, "b q h d"], Float[Tensor, "b k h d"]]:
        """Return the rotated queries and keys; `query_offset` is the first query's position, by default T - n."""
        if query_offset is None:
            query_offset = k.shape[1] - q.shape[1]
        return self._turn(q, query_offset), self._turn(k, 0)

    def at(self, offset: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The rotation of queries and keys that both begin at a position."""
        return lambda q, k: (self._turn(q, offset), self._turn(k, offset))

    def _turn(self, x: Float[Tensor, "b t h d"], offset: int) -> Float[Tensor, "b t h d"]:
        # bf16 cannot distinguish position 257 from 256: angles need at least float32
        precise = torch.promote_types(x.dtype, torch.float32)
        positions = torch.arange(offset, offset + x.shape[1], device=x.device, dtype=precise)
        exponents = torch.arange(0, self.head_dim, 2, device=x.device, dtype=precise) / self.head_dim
        angles = (positions[:, None] * self.base**-exponents)[:, None, :]
        cosine, sine = angles.cos(), angles.sin()
        first, second = x.to(precise).chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1).to(x.dtype)
