"""Attention of several questions to one context: the last tokens see the tokens before them and themselves, not one another.

So one sequence answers many queries, each exactly as if it had been asked alone. As a mask this is

    may_attend[q, k] = k is not isolated, or k = q

which a fused kernel does not take. Two ways compute the same numbers with calls that it does take. Before a softmax, a bias
of MASKED_BIAS gives a pair the weight exp(-1e30 - max) = 0. Every other normalisation weighs each key on its own, so what
a query receives from the context and what it receives from itself can be computed apart and added.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.kernels import attend

MASKED_BIAS = -1e30


def isolation_mask(
    num_queries: int, num_keys: int, num_isolated: int, device: torch.device | None = None
) -> Bool[Tensor, "q k"]:
    """True where a query may attend; queries are aligned at the end."""
    keys = torch.arange(num_keys, device=device)
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)
    return (keys < num_keys - num_isolated) | (keys == queries[:, None])


def attend_isolated(
    q: Float[Tensor, "b q h d"],
    k: Float[Tensor, "b k h d"],
    v: Float[Tensor, "b k h e"],
    *,
    num_isolated: int,
    normalisation: str,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    **choices: Any,
) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"] | None]:
    """What `kernels.attend` gives under `isolation_mask`, with fast calls wherever nothing else is asked for."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    given = {"normalisation": normalisation, **choices}
    plain = mask is None and not choices["causal"] and not choices["return_codes"] and choices["code_map"] is None
    if plain and normalisation.startswith("softmax"):
        allowed = isolation_mask(num_queries, num_keys, num_isolated, q.device)
        hidden = torch.zeros(allowed.shape, device=q.device).masked_fill(~allowed, MASKED_BIAS)
        return attend(q, k, v, bias=hidden if bias is None else bias + hidden, **given)
    if plain and bias is None and num_isolated < num_keys:
        shown = num_keys - num_isolated
        out, _ = attend(q, k[:, :shown], v[:, :shown], **given)
        asked = min(num_queries, num_isolated)
        alone = [each[:, -asked:].flatten(0, 1).unsqueeze(1) for each in (q, k, v)]
        own = attend(*alone, **given)[0].view(len(q), asked, *out.shape[2:])
        return torch.cat([out[:, : num_queries - asked], out[:, num_queries - asked :] + own], dim=1), None
    allowed = isolation_mask(num_queries, num_keys, num_isolated, q.device)
    return attend(q, k, v, bias=bias, mask=allowed if mask is None else mask & allowed, **given)
