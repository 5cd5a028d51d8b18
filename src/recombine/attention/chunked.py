"""Attention over long sequences in plain PyTorch: a few queries at a time, computed again in the backward pass.

For devices without a fused kernel, and for the value networks no kernel has. Queries do not see each other, so the
definition of `reference.py` is applied to one chunk of them after another, each under `torch.utils.checkpoint`: only inputs
and outputs stay in memory between the passes, and what one chunk needs is bounded by `MOST_ELEMENTS`. Memory beyond the
inputs is linear in the length. Under a causal mask, keys that no query of a chunk may see are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recombine.attention import definition as reference
from recombine.attention.checks import open_door
from recombine.attention.dropout import Dropout, Rows
from recombine.foundation.errors import check_positive

MOST_ELEMENTS = 1 << 24
"""Elements of the largest tensor of a chunk, if `chunk_size` is not given."""


def attend(
    q: Float[Tensor, "#b q #h d"],
    k: Float[Tensor, "#b k #h d"],
    v: Float[Tensor, "#b k #h e"],
    *,
    normalisation: reference.Normalisation,
    value_network: reference.ValueNetwork,
    bias: Float[Tensor, "*#pairs"] | None = None,
    mask: Bool[Tensor, "*#pairs"] | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
    deep_weight: Float[Tensor, "h e e"] | None = None,
    chunk_size: int | None = None,
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives, as `reference.attend` defines it; `chunk_size` queries at a time."""
    q, k, v = open_door(q, k, v, bias=bias, mask=mask, dropout=dropout, deep_weight=deep_weight)
    if chunk_size is None:
        chunk_size = choose_chunk_size(q, k, v)
    check_positive(chunk_size=chunk_size)
    choices = {"normalisation": normalisation, "value_network": value_network, "causal": causal}
    num_queries, num_keys = q.shape[1], k.shape[1]
    starts = range(0, num_queries, chunk_size)
    # `split`, for the gradient of many slices would be as many tensors of full size
    bias_rows, mask_rows = (_split(pairs, chunk_size, len(starts)) for pairs in (bias, mask))
    outputs = []
    for start, queries, *pairs in zip(starts, q.split(chunk_size, dim=1), bias_rows, mask_rows, strict=True):
        num_visible = num_keys - num_queries + start + queries.shape[1] if causal else num_keys
        if num_visible <= 0:
            outputs.append(queries.new_zeros(*queries.shape[:3], v.shape[3]))
            continue
        part = dropout and dropout._replace(rows=Rows(start, num_queries, num_keys))
        arguments = (queries, k, v, *pairs, part, deep_weight, num_visible, choices)
        if torch.is_grad_enabled():
            outputs.append(checkpoint(_attend_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(_attend_chunk(*arguments))
    return torch.cat(outputs, dim=1)


def _attend_chunk(q, k, v, bias, mask, dropout, deep_weight, num_visible, choices):
    bias, mask = _keep_keys(bias, num_visible), _keep_keys(mask, num_visible)
    k, v = k[:, :num_visible], v[:, :num_visible]
    return reference.attend(q, k, v, bias=bias, mask=mask, dropout=dropout, deep_weight=deep_weight, **choices)[0]


def _split(pairs: Tensor | None, chunk_size: int, num_chunks: int) -> Iterable[Tensor | None]:
    """The rows of each chunk of queries, of a bias or mask that broadcasts to (b, h, q, k)."""
    if pairs is None or pairs.dim() < 2 or pairs.shape[-2] == 1:
        return itertools.repeat(pairs, num_chunks)
    return pairs.split(chunk_size, dim=-2)


def _keep_keys(pairs: Tensor | None, num_keys: int) -> Tensor | None:
    return pairs if pairs is None or pairs.dim() == 0 or pairs.shape[-1] == 1 else pairs[..., :num_keys]


def choose_chunk_size(q: Tensor, k: Tensor, v: Tensor) -> int:
    """As many queries as keep the codes, and the hidden units of a hypernetwork, within `MOST_ELEMENTS`."""
    per_query = q.shape[0] * k.shape[1] * max(q.shape[2], v.shape[3])
    return max(1, min(q.shape[1], MOST_ELEMENTS // per_query))
