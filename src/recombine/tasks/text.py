"""The text form of a task: prompts for language models, and how their answers are read.

A prompt has instructions, worked examples with training compositions, and a question. It ends with `Answer:`, unless the
model is asked to reason first. Two parsers read a response, each with a regular expression, which an exported task of
lm-evaluation-harness contains too:

- strict: the response is the answer, optionally after `Answer:`, and nothing else;
- lenient: the last part of the response that has the form of an answer.

A response that cannot be read counts as wrong.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.tasks.base import Task
from recombine.tasks.sampling import Batch

Parser = Literal["strict", "lenient"]
PARSERS: tuple[Parser, ...] = get_args(Parser)
IGNORED = ","  # between the parts of an answer


class TextForm(ABC):
    """How instances of a task are written and answered as text."""

    # what an answer within a response may not follow and precede: by default numbers, as a longer list is no answer
    boundaries: ClassVar[tuple[str, str]] = (r"(?<![\d.-])(?<!\d )(?<!\d, )", r"(?!\d)(?!\.\d)(?!,? -?\d)")

    def __init__(self, task: Task) -> None:
        self.task = task  # the task whose rows are written: that of the caller, with numbers that text can show

    @property
    @abstractmethod
    def instructions(self) -> str:
        """What the task is, and everything a reader needs to know to solve it."""

    @property
    @abstractmethod
    def answer_format(self) -> str:
        """How to answer, as the end of a sentence that begins with `Answer with`."""

    @property
    @abstractmethod
    def pattern(self) -> str:
        """A regular expression, without groups, that matches an answer."""

    @abstractmethod
    def write_question(self, batch: Batch, row: int) -> str:
        """One row, without its answer."""

    @abstractmethod
    def write_answers(self, batch: Batch, row: int) -> list[str]:
        """All right answers of a row, as the pattern matches them, the usual one first."""

    @abstractmethod
    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """Predictions, as a module returns them, that mean the answers to the rows of a batch; None is a wrong answer."""

    def expression(self, parser: Parser) -> str:
        """The regular expression of a parser. Its last match in a response is the answer."""
        if parser == "strict":
            return rf"\A\s*(?:Answer:)?\s*({self.pattern})\s*\Z"
        before, after = self.boundaries
        return rf"(?i){before}({self.pattern}){after}"

    def parse(self, response: str, parser: Parser) -> str | None:
        """The answer in a response, in lower case and without commas; None if there is none."""
        matches = re.findall(self.expression(parser), response)
        return matches[-1].strip().replace(IGNORED, "").lower() if matches else None

    def write_prompt(self, batch: Batch, row: int, *, examples: Sequence[str] = (), reasoning: bool = False) -> str:
        """Instructions, worked examples and the question of a row."""
        question = self.write_question(batch, row)
        rule = "Think first. End with a line that begins with `Answer:` and has" if reasoning else "Answer with"
        end = "" if reasoning else "\nAnswer:"
        return "\n\n".join([f"{self.instructions} {rule} {self.answer_format}.", *examples, question + end])

    def write_examples(self, count: int) -> list[str]:
        """Worked examples: the first instances of the training split, each with its answer."""
        if count == 0:
            return []
        batch = self.task.sample("train", 0, batch_size=count)
        return [
            f"{self.write_question(batch, row)}\nAnswer: {self.write_answers(batch, row)[0]}" for row in range(count)
        ]


def round_decimals(values: Float[Tensor, "*shape"], decimals: int) -> Float[Tensor, "*shape"]:
    """Round to this number of decimals; 0 leaves the values unchanged. Equal decimals are equal to the last bit."""
    return torch.round(values, decimals=decimals) if decimals else values
