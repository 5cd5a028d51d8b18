"""What a probe reads of language: commands of the grammar, up to the token behind which their answers begin to differ.

There the model must know verb, noun and modifier. This token is the colon, or a space behind it if the tokeniser has a token
for it (`bytes`). The latent code is that of this token attending to the command.

A swap gives this token the codes of a command whose answer begins differently; the tokens of the row stay. If the codes alone
decide, the answer begins as that of the other command. If they say where to look, as the weights of softmax attention do,
it need not: the words that are found there are the row's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from recombine.errors import InputError
from recombine.tasks.base import Batch, SplitName
from recombine.tasks.language import grammar
from recombine.tasks.language.task import Language
from recombine.tasks.reading import Counterfactual, Reading


class LanguageReading(Reading):
    """Rows of the grammar that end where the answer is decided; their target is the first token that tells answers apart."""

    task: Language
    version = 2
    instances = "commands of the grammar, up to where their answers begin to differ"
    codes = "the last token attending to the command"
    labels = "the words of the command"

    def __init__(self, task: Language) -> None:
        super().__init__(task)

    @cached_property
    def sentences(self) -> grammar.Sentences:
        """All commands with their answers."""
        commands, tokenizer = (*self.task.split.train, *self.task.split.ood), self.task.tokenizer_in_use
        return grammar.Sentences.write(commands, tokenizer, grammar.longest_sentence(tokenizer, commands))

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """The rows that are evaluated, without the rest of their answers; all are cut to the same length."""
        return map(self._cut, super().batches(split, num_instances, device))

    def _cut(self, batch: Batch) -> Batch:
        rest = self.sentences.longest_answer - self.sentences.num_shared - 1
        length = batch.inputs.shape[1] - rest
        needed = self.sentences.longest_command + self.sentences.num_shared
        if length < needed:
            raise InputError(
                f"context_length is {self.task.context_length}: expected at least {needed + rest}, the longest command with "
                "its answer, to read codes before the answer"
            )
        last = batch.info["scored"].int().argmax(dim=1) + self.sentences.num_shared
        places = last[:, None] + torch.arange(1 - length, 1, device=last.device)
        columns = {name: batch.info[name].gather(1, places) for name in ("scored", "num_bytes")}
        columns["scored"] = torch.zeros_like(columns["scored"]).index_fill_(1, last.new_tensor([length - 1]), True)
        inputs, targets = batch.inputs.gather(1, places), batch.targets.gather(1, places)
        return replace(batch, inputs=inputs, targets=targets, info={**batch.info, **columns})

    @property
    def keys(self) -> tuple[int, ...]:
        """As many as the shortest command has tokens, so that all are part of the command, with what all answers share."""
        return tuple(range(-self.sentences.shortest_command - self.sentences.num_shared, 0))

    @property
    def swap(self) -> Reading:
        return self

    def group(self, batch: Batch) -> Int[Tensor, " rows"]:
        """The token that tells answers apart."""
        return self.target(batch)

    def read_answer(self, predictions: Tensor) -> Int[Tensor, " rows"]:
        """The token that the model predicts there."""
        return predictions[:, -1].argmax(dim=-1)

    def counterfactual(
        self, batch: Batch, partner: Int[Tensor, " rows"], answers: Shaped[Tensor, " rows *outputs"]
    ) -> Counterfactual:
        own = self.target(batch)
        return Counterfactual(own=own, other=own[partner], distinct=own[partner] != own)
