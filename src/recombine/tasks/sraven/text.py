"""SRAVEN as text: a row of panels per line, and the numbers of the missing panel as the answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recombine.tasks.batch import Batch
from recombine.tasks.sraven.task import SRaven
from recombine.tasks.text import TextForm

NUMBER = r"(?:0|[1-9]\d*)"


class SRavenText(TextForm):
    """Panels as numbers."""

    task: SRaven

    @property
    def instructions(self) -> str:
        size, features, values = self.task.grid_size, self.task.num_features, self.task.num_values
        moved = "at the same position in every column"
        if self.task.permuted:
            moved = (
                "not always at the same position: each column has an order of the features of its own, which is the same "
                "in all rows"
            )
        return (
            f"A puzzle is a grid of {size} x {size} panels, separated by |. A panel has {features} numbers from 0 to "
            f"{values - 1}, one for each feature. A feature is {moved}. From left to right, each feature follows one of "
            "these rules, the same in every row: constant (the number stays the same); progression (it changes by +1, +2, -1 "
            "or -2 from column to column); addition (the last number is the sum of the others); subtraction (the last number "
            f"is the first minus the others); distribute (the same {size} different numbers occur in every row, in any "
            f"order). All sums are modulo {values}. Find the last panel, with its numbers in the order of the last column."
        )

    @property
    def answer_format(self) -> str:
        return f"its {self.task.num_features} numbers, separated by spaces, and nothing else"

    @property
    def pattern(self) -> str:
        return NUMBER + rf"(?:,? {NUMBER}){{{self.task.num_features - 1}}}"

    def write_question(self, batch: Batch, row: int) -> str:
        panels = batch.info["grids"][row].tolist()
        panels[-1][-1] = ["?"] * self.task.num_features
        lines = [" | ".join(" ".join(map(str, panel)) for panel in line) for line in panels]
        return "\n".join(f"Row {number + 1}: {line}" for number, line in enumerate(lines))

    def write_answers(self, batch: Batch, row: int) -> list[str]:
        return [" ".join(map(str, batch.targets[row].tolist()))]

    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """Numbers that are missing or out of range are replaced by wrong ones."""
        wrong = (batch.targets + 1) % self.task.num_values
        none = [-1] * self.task.num_features
        numbers = [none if answer is None else [int(number[:9]) for number in answer.split()] for answer in answers]
        given = torch.tensor(numbers)
        return self.task.predict_answers(torch.where((given >= 0) & (given < self.task.num_values), given, wrong))
