"""The in-context task as text: examples of a function as numbers with a few decimals, and one query."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.tasks.batch import Batch
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.text import TextForm


class InContextText(TextForm):
    """Inputs and outputs as numbers; a sequence has one query."""

    task: InContext

    @property
    def instructions(self) -> str:
        return (
            f"A function maps {self.task.input_size} numbers x to {self.task.output_size} numbers y. It is a neural network "
            f"with one hidden layer of {self.task.hidden_size} rectified linear units and no biases. The following lines "
            "show values of one such function. Find y in the last line."
        )

    @property
    def answer_format(self) -> str:
        count, decimals = self.task.output_size, self.task.decimals
        return f"its {count} numbers, with {decimals} decimals, separated by spaces, and nothing else"

    @property
    def pattern(self) -> str:
        number = rf"-?\d{{1,6}}\.\d{{{self.task.decimals}}}"
        return number + rf"(?:,? {number}){{{self.task.output_size - 1}}}"

    def _write(self, values: Float[Tensor, " features"]) -> str:
        return " ".join(f"{value + 0.0:.{self.task.decimals}f}" for value in values.tolist())

    def write_question(self, batch: Batch, row: int) -> str:
        *examples, query = batch.inputs[row]
        size = self.task.input_size
        lines = [f"x: {self._write(token[:size])}  y: {self._write(token[size:])}" for token in examples]
        return "\n".join([*lines, f"x: {self._write(query[:size])}  y: ?"])

    def write_answers(self, batch: Batch, row: int) -> list[str]:
        return [self._write(batch.targets[row, 0])]

    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """An answer that is missing is the best constant."""
        predictions = self.task.chance(batch).double().clone()
        for row, answer in enumerate(answers):
            if answer is not None:
                predictions[row, 0] = torch.tensor([float(number) for number in answer.split()], dtype=torch.float64)
        return predictions
