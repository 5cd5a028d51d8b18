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

The keys for the dropout of attention layers (`kernels/dropout.py` explains what a key determines).

In your own training loop, each call draws a new key from torch's generator, so `torch.manual_seed` controls it. Our trainer
sets the keys instead: inside `with DropoutKeys(model).at(seed, step):` they are a pure function of the seed, the step and the
number of the layer, so that a resumed run drops the same codes. In evaluation nothing is dropped.

A key is a tensor whose value the trainer changes in place, so a compiled model is not compiled again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recombine.foundation.errors import InputError, check_choice
from recombine.random import advance_key, hash_key, mix

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


class CodeDropout(nn.Module):
    """Dropout of the codes of one layer. Returns what to drop in this call, or None in evaluation."""

    key: Int[Tensor, ""]

    def __init__(self, rate: float = 0.0, form: DropoutForm = "elements") -> None:
        super().__init__()
        check_dropout(rate, form)
        self.rate, self.form = rate, form
        self.keyed = False
        self.first_row = 0  # of this process, in the global batch
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self) -> Dropout | None:
        if not self.training or self.rate == 0:
            return None
        # a copy, since the backward pass may need it after the next step has begun
        key = self.key.clone() if self.keyed else torch.randint(-(2**63), 2**63 - 1, (), device=self.key.device)
        return Dropout(self.rate, self.form, key, first_row=self.first_row)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, form={self.form}"


class DropoutKeys:
    """The dropout of all layers of a model, in the order of its modules.

    `first_row` is the number of the first row that the model is given in the global batch, for `elements`.
    """

    def __init__(self, model: nn.Module, *, first_row: int = 0) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, CodeDropout)]
        for layer in self.layers:
            layer.first_row = first_row

    @contextlib.contextmanager
    def at(self, seed: int, step: int) -> Iterator[None]:
        """Set the keys of every layer for this step."""
        active = [(number, layer) for number, layer in enumerate(self.layers) if layer.rate > 0]
        for number, layer in active:
            layer.key.fill_(hash_key("dropout", seed, step, number))
            layer.keyed = True
        try:
            yield
        finally:
            for _, layer in active:
                layer.keyed = False
