"""Dropout of latent codes in training: which codes are dropped is a pure function of a key, so that every kernel agrees.

After the normalisation a code is set to 0 with probability `rate`, and otherwise multiplied by 1 / (1 - rate). Two forms:

    pairs       one decision for each (query, key), shared by the batch and the heads (the release of "Attention as a
                Hypernetwork"): a pair is seen by all heads or by none
    elements    one decision for each code (b, h, q, k), as in `torch.nn.MultiheadAttention`

A hypernetwork uses its codes twice, so a pair that is kept counts 1 / (1 - rate)^2.

The bits are those of `splitmix` under the key. Numbers of 16 bits decide, four to a word: keys 4 j to 4 j + 3 of row r share
the word at counter r * ceil(k / 4) + j, the lowest 16 bits first; a code is dropped if its number is below rate * 2^16. Rows
are numbered q (pairs) or (b * H + h) * Q + q (elements). `cpu_mask.h` computes the same bits in C.

A call whose batch is a part of a larger one, from `first_row` on, drops what the larger one would: the counter and the key
enter as a sum, so `move_to_start` adds to the key what the rows before the part add to the counter.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.errors import InputError, check_choice
from recombine.splitmix import advance_key, mix

DropoutForm = Literal["pairs", "elements"]
DROPOUT_FORMS: tuple[DropoutForm, ...] = get_args(DropoutForm)


class Rows(NamedTuple):
    """The queries of a call that are part of a larger one, and the sizes of the larger one."""

    first_query: int
    num_queries: int
    num_keys: int


class Dropout(NamedTuple):
    """What is dropped; the key is a tensor so that a compiled model does not depend on its value."""

    rate: float
    form: DropoutForm
    key: Int[Tensor, ""]
    rows: Rows | None = None
    first_row: int = 0


def move_to_start(dropout: Dropout, num_heads: int, num_queries: int, num_keys: int) -> Dropout:
    """The same dropout with a key for which the first row of the batch is row 0."""
    if dropout.first_row == 0 or dropout.form == "pairs":
        return dropout._replace(first_row=0)
    counter = dropout.first_row * num_heads * num_queries * -(-num_keys // 4)
    return dropout._replace(first_row=0, key=advance_key(dropout.key, counter))


def find_threshold(rate: float) -> int:
    """Codes whose 16 bits are below it are dropped."""
    return round(rate * 65536)


def find_scale(rate: float) -> float:
    """What the codes that are kept are multiplied by."""
    return 1 / (1 - rate)


def check_dropout(rate: float, form: str = "elements") -> None:
    """Require a rate that leaves something, and a form that exists."""
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise InputError(f"dropout is {rate!r}: expected a number from 0 to below 1")
    check_choice("form of dropout", form, DROPOUT_FORMS)


def drop(codes: Float[Tensor, "b h q k"], dropout: Dropout) -> Float[Tensor, "b h q k"]:
    """Set some codes to 0 and scale the others."""
    kept = find_kept(dropout, codes.shape, codes.device)
    return (codes * find_scale(dropout.rate)).masked_fill(~kept, 0.0)


def find_kept(dropout: Dropout, shape: torch.Size, device: torch.device) -> Bool[Tensor, "#b #h q k"]:
    """True for the codes, of shape (b, h, q, k), that are kept."""
    b, h, num_queries, num_keys = shape
    first, all_queries, all_keys = dropout.rows or (0, num_queries, num_keys)
    rows = torch.arange(first, first + num_queries, device=device).view(1, 1, -1, 1)
    if dropout.form == "elements":
        rows = rows + torch.arange(b * h, device=device).view(b, h, 1, 1) * all_queries
    words = torch.arange(-(-num_keys // 4), device=device)
    bits = mix(rows * -(-all_keys // 4) + words, dropout.key.to(device))
    numbers = torch.stack([(bits >> 16 * i) & 0xFFFF for i in range(4)], dim=-1).flatten(-2)
    return numbers[..., :num_keys] >= find_threshold(dropout.rate)
