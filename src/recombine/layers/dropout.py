"""The keys for the dropout of attention layers (`kernels/dropout.py` explains what a key determines).

In your own training loop, each call draws a new key from torch's generator, so `torch.manual_seed` controls it. Our trainer
sets the keys instead: inside `with DropoutKeys(model).at(seed, step):` they are a pure function of the seed, the step and the
number of the layer, so that a resumed run drops the same codes. In evaluation nothing is dropped.

A key is a tensor whose value the trainer changes in place, so a compiled model is not compiled again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor, nn

from recombine.kernels import Dropout, DropoutForm
from recombine.kernels.dropout import check_dropout
from recombine.splitmix import hash_key


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
