"""The rows of a language task: windows of text, sentences of the grammar, and in-context recall."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.tasks.batch import Batch
from recombine.tasks.language import grammar, recall
from recombine.tasks.language.scoring import GRAMMAR, RECALL, TEXT
from recombine.tasks.sampling import SplitName
from recombine.tasks.stream import Stream

if TYPE_CHECKING:
    from recombine.tasks.language.task import Language

FIRST_KEY, FIRST_DOCUMENT = 100, 1_000  # numbers of what is not a word of the grammar
UNIGRAM_TOKENS = 1 << 20  # of the corpus, for the frequencies that chance predicts


class Rows:
    """Makes the batches of a task, all from random numbers of a stream on the CPU."""

    def __init__(self, task: Language) -> None:
        self.task = task
        self.corpus, self.split, self.tokenizer = task.tokens, task.split, task.tokenizer_in_use
        self.length, self.num_pairs = task.context_length, task.num_pairs

    def make(self, split: SplitName, stream: Stream) -> Batch:
        makers: dict[str, Callable[[Stream], Batch]] = {
            "train": self._mix,
            "text": self._read_held_out,
            "recall": self._ask_recall,
        }
        return makers[split](stream) if split in makers else self._ask_grammar(split, stream)

    def _mix(self, stream: Stream) -> Batch:
        """Rows of all kinds. Each draws the numbers of every kind, and then only its own tokens are made."""
        length = self.length + 1
        share = stream.uniform(1)[:, 0]
        kind = torch.where(share < self.task.grammar_fraction, GRAMMAR, TEXT)
        kind[share >= 1 - self.task.recall_fraction] = RECALL
        starts = (stream.bits(1)[:, 0] & (2**63 - 1)).numpy() % max(1, self.corpus.num_tokens)
        number, modules = self.task.draw_compositions("train", stream)
        text, grammatical, recalling = ((kind == each).nonzero()[:, 0] for each in (TEXT, GRAMMAR, RECALL))
        shape = (len(kind), length)
        tokens = torch.empty(shape, dtype=torch.int64, device="cpu")
        scored = torch.ones(shape, dtype=torch.bool, device="cpu")
        windows = tokens.numpy()
        for row in text.tolist():
            windows[row] = self.corpus.window(int(starts[row]), length)
        tokens[grammatical], scored[grammatical] = self._pack("train", stream, length, rows=grammatical)
        made = recall.draw_recall(stream, self.tokenizer, self.num_pairs, length, rows=recalling)
        tokens[recalling], scored[recalling], _ = made
        return self._batch(tokens, scored, kind, number, modules)

    def _pack(
        self,
        split: SplitName,
        stream: Stream,
        length: int,
        *,
        last: Int[Tensor, " all"] | None = None,
        rows: Int[Tensor, " rows"] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Windows of packed sentences of trained commands: tokens, and which belong to answers.

        With `last`, the window ends with that command of the split, and only its answer is marked. With `rows`, only these
        rows of the stream are made.
        """
        sentences = self._sentences["train"]
        count = -(-length // sentences.shortest) + 1
        chosen = stream.integers(len(self.split.train), count)
        room = length + sentences.tokens.shape[1]
        if last is None:
            first = stream.integers(sentences.tokens.shape[1], 1)
            if rows is not None:
                chosen, first = chosen[rows], first[rows]
            tokens, answers, _ = sentences.pack(chosen, room)
        else:
            every = self._sentences["all"]
            shift = len(self.split.train) if split == "ood" else 0
            chosen = torch.cat([chosen, (last + shift)[:, None]], dim=1)
            room = int(every.ends[chosen].sum(dim=1).max())
            tokens, answers, sentence = every.pack(chosen, room)
            answers = answers & (sentence == count)
            first = every.ends[chosen].sum(dim=1, keepdim=True) - length
        places = first + torch.arange(length)
        return tokens.gather(1, places), answers.gather(1, places)

    @cached_property
    def _sentences(self) -> dict[str, grammar.Sentences]:
        """The sentences of trained commands, and those of all commands, trained ones first."""
        every = (*self.split.train, *self.split.ood)
        longest = self._longest_sentence
        made = {"train": self.split.train, "all": every}
        return {name: grammar.Sentences.write(commands, self.tokenizer, longest) for name, commands in made.items()}

    @cached_property
    def _longest_sentence(self) -> int:
        return grammar.longest_sentence(self.tokenizer, (*self.split.train, *self.split.ood))

    def _ask_grammar(self, split: SplitName, stream: Stream) -> Batch:
        """Two or more sentences of trained commands, then the command of the row."""
        number, modules = self.task.draw_compositions(split, stream)
        length = min(3 * self._longest_sentence, self.length) + 1
        tokens, answers = self._pack(split, stream, length, last=number)
        return self._batch(tokens, answers, torch.full_like(number, GRAMMAR), number, modules)

    def _ask_recall(self, stream: Stream) -> Batch:
        length = recall.length_of(self.num_pairs)
        tokens, recalled, key = recall.draw_recall(stream, self.tokenizer, self.num_pairs, length)
        return self._batch(tokens, recalled, torch.full_like(key, RECALL), key, FIRST_KEY + key[:, None])

    def _read_held_out(self, stream: Stream) -> Batch:
        """Windows of held-out documents, equally likely; the first starts with the document."""
        windows = self.corpus.windows(self.length)
        chosen = windows[stream.integers(len(windows), 1)[:, 0].numpy()]
        tokens = torch.full((len(chosen), self.length + 1), self.tokenizer.pad)
        lengths = torch.from_numpy(chosen[:, 2] - chosen[:, 1])
        for row, (_, start, stop) in enumerate(chosen.tolist()):
            window = self.corpus.held_out(start, stop + 1)
            tokens[row, : len(window)] = torch.from_numpy(window.astype(np.int64))
        scored = torch.arange(self.length + 1) <= lengths[:, None]
        document = torch.from_numpy(chosen[:, 0])
        return self._batch(
            tokens, scored, torch.full_like(document, TEXT), document, FIRST_DOCUMENT + document[:, None]
        )

    def _batch(self, tokens: Tensor, scored: Tensor, kind: Tensor, number: Tensor, modules: Tensor) -> Batch:
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        info = {
            "composition": number,
            "kind": kind,
            "scored": scored[:, 1:].contiguous(),
            "num_bytes": self._num_bytes[targets],
        }
        return Batch(inputs, targets, modules, info)

    @cached_property
    def _num_bytes(self) -> Tensor:
        return torch.from_numpy(self.tokenizer.num_bytes)

    def frequencies(self, batch: Batch) -> Float[Tensor, "b t vocabulary"]:
        """Logarithms of the frequencies of tokens, for rows of one kind (of the text, where kinds are mixed)."""
        kind = batch.info["kind"]
        shape = (*batch.targets.shape, self.tokenizer.size)
        if (kind == GRAMMAR).all():
            position = (batch.info["scored"].cumsum(dim=1) - 1).clamp(min=0, max=len(self._answer_frequencies) - 1)
            return self._answer_frequencies.to(position.device)[position]
        table = self._value_frequencies if (kind == RECALL).all() else self._text_frequencies
        return table.to(kind.device).expand(shape)

    @cached_property
    def _text_frequencies(self) -> Float[Tensor, " vocabulary"]:
        tokens = self.corpus.window(0, min(UNIGRAM_TOKENS, self.corpus.num_tokens)).astype(np.int64)
        counts = np.bincount(tokens, minlength=self.tokenizer.size) + 1.0
        return torch.from_numpy(np.log(counts / counts.sum())).float()

    @cached_property
    def _value_frequencies(self) -> Float[Tensor, " vocabulary"]:
        logits = torch.full((self.tokenizer.size,), -30.0, dtype=torch.float32)
        logits[list(self.tokenizer.rare[recall.NUM_KEYS : recall.NUM_KEYS + recall.NUM_VALUES])] = 0.0
        return logits.log_softmax(dim=0)

    @cached_property
    def _answer_frequencies(self) -> Float[Tensor, "places vocabulary"]:
        """Of the tokens at each place of an answer, over trained commands."""
        sentences = self._sentences["train"]
        lengths = sentences.ends - sentences.answers
        counts = torch.full((int(lengths.max()), self.tokenizer.size), 1e-9, dtype=torch.float32)
        for row, first, end in zip(sentences.tokens, sentences.answers, sentences.ends, strict=True):
            counts[torch.arange(int(end - first)), row[first:end]] += 1
        return counts.log()
