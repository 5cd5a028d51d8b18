"""What a probe reads of SRAVEN: the rule of the last feature, on puzzles without permutations, where it is known.

The latent code is that of the last query token attending to the same feature in its own row, itself included (Attention as
a Hypernetwork, section 4). A swap gives this token the codes of a puzzle whose last feature follows another rule. If the
code determines the operation, the answer is the result of that other rule on the puzzle's own row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.tasks.base import Batch
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.sraven.rules import DISTRIBUTE, RULES, deduce_last
from recombine.tasks.sraven.task import SRaven


class SRavenReading(Reading):
    """The rule of the last feature of unpermuted puzzles, and the code of its row."""

    task: SRaven
    instances = "puzzles without permutations"
    codes = "the last query token attending to the same feature in its own row, and to itself"
    labels = "the rule of the last feature"
    group_names = RULES

    def __init__(self, task: SRaven) -> None:
        super().__init__(replace(task, permuted=False))

    @property
    def keys(self) -> tuple[int, ...]:
        return tuple(-1 - column * self.task.num_features for column in reversed(range(self.task.grid_size)))

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return one_hot(self.group(batch), len(self.modules)).float()

    @property
    def swap(self) -> Reading:
        return self

    def group(self, batch: Batch) -> Int[Tensor, " rows"]:
        """The rule of the last feature."""
        return batch.info["rules"][:, -1]

    def read_answer(self, predictions: Tensor) -> Int[Tensor, " rows"]:
        """The value of the last feature."""
        return predictions[:, -1].argmax(dim=-1)

    def counterfactual(
        self, batch: Batch, partner: Int[Tensor, " rows"], answers: Shaped[Tensor, " rows *outputs"]
    ) -> Counterfactual:
        """The result of the partner's rule on the row. Distribute three is left out: it cannot be applied to another row."""
        rules, own = self.group(batch), batch.targets[:, -1]
        other = apply_rules(batch, rules[partner], self.task.output_dim)
        distinct = (rules[partner] != rules) & (rules[partner] != DISTRIBUTE) & (other != own)
        return Counterfactual(own=own, other=other, distinct=distinct)


def apply_rules(batch: Batch, rules: Int[Tensor, " rows"], num_values: int) -> Int[Tensor, " rows"]:
    """The results of rules on the last row of the last feature; for distribute three, the puzzle's own answer."""
    *columns, last = batch.info["grids"][:, -1, :, -1].unbind(dim=1)
    deduced = torch.cat([deduce_last(columns, num_values), last[None]])
    return deduced.gather(0, rules[None])[0]
