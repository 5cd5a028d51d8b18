"""Attention of several queries to one context: the last tokens see the tokens before them and themselves, not one another.

So one sequence answers many queries, each exactly as if it were alone. This is attention with the mask

    may_attend[q, k] = k is not isolated, or k = q

If each key is weighted independently, by a normalisation other than softmax, most of the masked pairs need not be computed:
the contributions of the context and of the query itself are computed separately and added.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.kernels import attend

WHOLE_CALL = ("causal", "dropout", "return_codes", "code_map")


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
    """Equals `kernels.attend` with `isolation_mask`, using faster calls where possible."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    given = {"normalisation": normalisation, **choices}
    apart = not normalisation.startswith("softmax") and num_isolated < num_keys
    # a bias, mask or dropout per pair, and returned codes, need the full call
    if apart and bias is None and mask is None and not any(choices.get(name) for name in WHOLE_CALL):
        shown = num_keys - num_isolated
        out, _ = attend(q, k[:, :shown], v[:, :shown], **given)
        asked = min(num_queries, num_isolated)
        alone = [tensor[:, -asked:].flatten(0, 1).unsqueeze(1) for tensor in (q, k, v)]
        own = attend(*alone, **given)[0].view(len(q), asked, *out.shape[2:])
        return torch.cat([out[:, : num_queries - asked], out[:, num_queries - asked :] + own], dim=1), None
    allowed = isolation_mask(num_queries, num_keys, num_isolated, q.device)
    return attend(q, k, v, bias=bias, mask=allowed if mask is None else mask & allowed, **given)
