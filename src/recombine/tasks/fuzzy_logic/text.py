"""Fuzzy logic as text: variables with two decimals, one example per line, and the value at the query as the answer.

Rounding commutes with min, max and 1 - x, so the answer is exact: it is one of the numbers in the question, or 1 minus one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recombine.tasks.batch import Batch
from recombine.tasks.fuzzy_logic.task import FuzzyLogic
from recombine.tasks.text import TextForm


class FuzzyLogicText(TextForm):
    """Examples as numbers with as many decimals as the task has."""

    task: FuzzyLogic

    @property
    def instructions(self) -> str:
        return (
            f"A fuzzy logic function has {self.task.num_variables} variables between 0 and 1. With not x = 1 - x, and = "
            f"minimum, or = maximum, it is an or of {self.task.num_terms} different terms. A term is an and of all "
            "variables, each of them as it is or negated. The following lines show values of one such function f. Find its "
            "value in the last line."
        )

    @property
    def answer_format(self) -> str:
        return f"this number, with {self.task.decimals} decimals, and nothing else"

    @property
    def pattern(self) -> str:
        return rf"[01]\.\d{{{self.task.decimals}}}"

    def _write(self, value: float) -> str:
        return f"{value:.{self.task.decimals}f}"

    def write_question(self, batch: Batch, row: int) -> str:
        lines = []
        for *x, y in batch.inputs[row].tolist():
            values = " ".join(f"x{number + 1}={self._write(value)}" for number, value in enumerate(x))
            lines.append(f"{values} f={self._write(y)}")
        lines[-1] = lines[-1].rpartition("=")[0] + "=?"
        return "\n".join(lines)

    def write_answers(self, batch: Batch, row: int) -> list[str]:
        return [self._write(float(batch.targets[row]))]

    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """An answer that is missing is the best constant, moved by a decimal where that would happen to be right."""
        constant = self.task.chance(batch).double()
        step = 10.0**-self.task.decimals
        right = (constant - batch.targets).abs() < 2 * step
        constant = torch.where(right, constant - 2 * step, constant)
        given = [float("nan") if answer is None else float(answer) for answer in answers]
        numbers = torch.tensor(given, dtype=torch.float64)
        return torch.where(numbers.isnan(), constant, numbers)
