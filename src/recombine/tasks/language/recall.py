"""In-context recall: pairs of a key and a value, then keys again, whose values are to be recalled.

    k3 v7 k1 v2 k8 v5 | k1 v2 k3 v7 ...

This is multi-query associative recall (MQAR) of Arora et al. 2023 (Zoology, arXiv 2312.04927), which separates kinds of
attention better than the loss on text does. Keys and values are tokens that hardly occur in text: 64 of each. The keys of a
row are different; a value may occur twice. Only the recalled values are trained and scored.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from recombine.tasks.language.tokenizers import Tokenizer
from recombine.tasks.stream import Stream

NUM_KEYS = 64
NUM_VALUES = 64


def length_of(num_pairs: int) -> int:
    """Number of tokens with which each key is asked for once."""
    return 4 * num_pairs


def draw_recall(
    stream: Stream, tokenizer: Tokenizer, num_pairs: int, length: int, *, rows: Int[Tensor, " rows"] | None = None
) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"], Int[Tensor, " rows"]]:
    """Pairs, then queries: tokens, which of them are recalled values, and the number of the first key that is asked for.

    The keys are asked for in random order, all of them before any is asked for again. With `rows`, only these rows of the
    stream are made.
    """
    rare = torch.tensor(tokenizer.rare)
    num_queries = -(-(length - 2 * num_pairs) // 2)
    keys = stream.choices(NUM_KEYS, num_pairs)
    values = stream.integers(NUM_VALUES, num_pairs)
    order = stream.permutations(num_pairs, -(-num_queries // num_pairs)).flatten(1)[:, :num_queries]
    if rows is not None:
        keys, values, order = keys[rows], values[rows], order[rows]
    shown_keys = torch.cat([keys, keys.gather(1, order)], dim=1)
    shown_values = torch.cat([values, values.gather(1, order)], dim=1)
    tokens = torch.stack([rare[shown_keys], rare[NUM_KEYS + shown_values]], dim=-1).flatten(1)[:, :length]
    places = torch.arange(length)
    recalled = (places >= 2 * num_pairs) & (places % 2 == 1)
    return tokens, recalled.expand(len(tokens), length), keys.gather(1, order[:, :1])[:, 0]
