"""The rows of a language task: windows of text, sentences of a grammar, and in-context recall.

The grammar has verbs, nouns and modifiers, and some pairs of verb and noun are never trained:

    dax wug twice: fep lom fep lom

Every verb and every noun has its own word in the answer; the modifier says in which order and how often they are
repeated. The answer is therefore a function of the command, and a network that has learned verbs, nouns and modifiers can
answer every command. All commands with a held-out pair of verb and noun are held out, with every modifier. The words are
invented, so that text does not help. Modules are numbered: verbs first, then nouns, then modifiers.

In-context recall shows pairs of a key and a value, then keys again, whose values are to be recalled:

    k3 v7 k1 v2 k8 v5 | k1 v2 k3 v7 ...

This is multi-query associative recall (MQAR) of Arora et al. 2023 (Zoology, arXiv 2312.04927), which separates kinds of
attention better than the loss on text does. Keys and values are tokens that hardly occur in text: 64 of each. The keys of a
row are different; a value may occur twice. Only the recalled values are trained and scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit, split_compositions
from recombine.random import Stream
from recombine.tasks.language.tokenizers import Tokenizer
from recombine.tasks.sampling import Batch, SplitName

if TYPE_CHECKING:
    from recombine.tasks.language.task import Language

TEXT, GRAMMAR, RECALL = 0, 1, 2  # kinds of rows, in `info["kind"]`
VERBS = ("dax", "blick", "zup", "kiki", "tove", "gorp", "fren", "mib")
NOUNS = ("wug", "lorp", "nazz", "quib", "sarn", "pell", "hob", "jex")
ACTIONS = ("fep", "rit", "bosh", "cug", "nal", "wem", "yat", "vod")
OBJECTS = ("lom", "dak", "pimo", "tew", "zil", "gan", "ruf", "sko")
# a: the word of the verb, o: the word of the noun
MODIFIERS = {"once": "ao", "twice": "aoao", "back": "oa", "more": "aao", "both": "aoo", "around": "aoa"}
NUM_VERBS, NUM_NOUNS = len(VERBS), len(NOUNS)
WORDS = (*VERBS, *NOUNS, *MODIFIERS)


def split_commands(held_out: float, seed: int) -> CompositionSplit:
    """Hold out a fraction of the pairs of verb and noun, each with all modifiers."""
    pairs = [(verb, NUM_VERBS + noun) for verb in range(NUM_VERBS) for noun in range(NUM_NOUNS)]
    split = split_compositions(pairs, held_out=held_out, seed=seed)
    modifiers = range(NUM_VERBS + NUM_NOUNS, len(WORDS))
    return replace(
        split,
        train=tuple(sorted((*pair, modifier) for pair in split.train for modifier in modifiers)),
        ood=tuple(sorted((*pair, modifier) for pair in split.ood for modifier in modifiers)),
    )


def write_command(composition: Composition) -> tuple[str, str]:
    """The command and the answer, as text."""
    verb, noun, modifier = composition
    words = {"a": ACTIONS[verb], "o": OBJECTS[noun - NUM_VERBS]}
    pattern = MODIFIERS[WORDS[modifier]]
    return f"{' '.join(WORDS[module] for module in composition)}:", f" {' '.join(words[word] for word in pattern)}\n"


@dataclass(frozen=True)
class Sentences:
    """The tokens of commands with their answers, padded; where the answer begins, and where the sentence ends."""

    tokens: Int[Tensor, "commands longest"]
    answers: Int[Tensor, " commands"]
    ends: Int[Tensor, " commands"]

    @classmethod
    def write(cls, compositions: Sequence[Composition], tokenizer: Tokenizer) -> Sentences:
        parts = [tuple(map(tokenizer.encode, write_command(composition))) for composition in compositions]
        rows = [[*command, *answer] for command, answer in parts]
        longest = max(map(len, rows))
        return cls(
            torch.tensor([[*row, *[tokenizer.pad] * (longest - len(row))] for row in rows]),
            torch.tensor([len(command) for command, _ in parts]),
            torch.tensor(list(map(len, rows))),
        )

    @cached_property
    def num_shared(self) -> int:
        """With how many tokens all answers begin alike: none, or the space behind the colon."""
        places = self.answers[:, None] + torch.arange(int((self.ends - self.answers).min()))
        beginnings = self.tokens.gather(1, places)
        return int((beginnings == beginnings[0]).all(dim=0).int().cumprod(dim=0).sum())

    def pack(
        self, chosen: Int[Tensor, "rows sentences"], length: int
    ) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"], Int[Tensor, "rows length"]]:
        """Sentences one after the other, cut after `length` tokens: tokens, which belong to answers, and their sentence.

        Places after the last sentence have the number of sentences as their sentence.
        """
        ends = self.ends[chosen].cumsum(dim=1)
        places = torch.arange(length).expand(len(chosen), length).contiguous()
        sentence = torch.searchsorted(ends, places, right=True)
        known = sentence.clamp(max=chosen.shape[1] - 1)
        command = chosen.gather(1, known)
        within = places - (ends.gather(1, known) - self.ends[command])
        inside = within < self.tokens.shape[1]
        within = within.clamp(max=self.tokens.shape[1] - 1)
        is_answer = inside & (sentence < chosen.shape[1]) & (within >= self.answers[command])
        return self.tokens[command, within], is_answer, sentence


NUM_KEYS = 64
NUM_VALUES = 64
TOKENS_PER_PAIR = 4  # a key and its value, each shown and queried once


def draw_recall(
    stream: Stream, tokenizer: Tokenizer, num_pairs: int, length: int, rows: Int[Tensor, " rows"] | slice = slice(None)
) -> tuple[Int[Tensor, "rows length"], Bool[Tensor, "rows length"], Int[Tensor, " rows"]]:
    """Pairs, then queries: tokens, which of them are recalled values, and the number of the first key that is queried.

    Keys are queried in random order, each once before any is queried again. With `rows`, only these rows of the stream are
    generated.
    """
    rare = torch.tensor(tokenizer.rare)
    num_queries = -(-(length - 2 * num_pairs) // 2)
    keys = stream.choices(NUM_KEYS, num_pairs)
    values = stream.integers(NUM_VALUES, num_pairs)
    order = stream.permutations(num_pairs, -(-num_queries // num_pairs)).flatten(1)[:, :num_queries]
    keys, values, order = keys[rows], values[rows], order[rows]
    shown_keys = torch.cat([keys, keys.gather(1, order)], dim=1)
    shown_values = torch.cat([values, values.gather(1, order)], dim=1)
    tokens = torch.stack([rare[shown_keys], rare[NUM_KEYS + shown_values]], dim=-1).flatten(1)[:, :length]
    places = torch.arange(length)
    recalled = (places >= 2 * num_pairs) & (places % 2 == 1)
    return tokens, recalled.expand(len(tokens), length), keys.gather(1, order[:, :1])[:, 0]


FIRST_KEY, FIRST_DOCUMENT = 100, 1_000  # numbers of what is not a word of the grammar
UNIGRAM_TOKENS = 1 << 20  # of the corpus, for the frequencies that chance predicts


class Rows:
    """Makes the batches of a task, all from random numbers of a stream on the CPU."""

    def __init__(self, task: Language) -> None:
        self.task = task
        self.corpus, self.split, self.tokenizer = task.tokens, task.split, task.tokenizer_in_use
        self.length, self.num_pairs = task.context_length, task.num_pairs

    def make(self, split: SplitName, stream: Stream) -> Batch:
        if split in ("test", "ood"):
            return self._make_grammar_rows(split, stream)
        return {"train": self._make_training_rows, "text": self._make_text_rows, "recall": self._make_recall_rows}[
            split
        ](stream)

    def _make_training_rows(self, stream: Stream) -> Batch:
        """Rows of all kinds. Each draws the numbers of every kind, and then only its own tokens are made."""
        length = self.length + 1
        share = stream.uniform(1)[:, 0]
        kind = torch.where(share < self.task.grammar_fraction, GRAMMAR, TEXT)
        kind[share >= 1 - self.task.recall_fraction] = RECALL
        starts = (stream.bits(1)[:, 0] & (2**63 - 1)).numpy() % max(1, self.corpus.num_tokens)
        number, modules = self.task.draw_compositions("train", stream)
        text, grammatical, recalling = ((kind == value).nonzero()[:, 0] for value in (TEXT, GRAMMAR, RECALL))
        shape = (len(kind), length)
        tokens = torch.empty(shape, dtype=torch.int64, device="cpu")
        scored = torch.ones(shape, dtype=torch.bool, device="cpu")
        windows = tokens.numpy()
        for row in text.tolist():
            windows[row] = self.corpus.window(int(starts[row]), length)
        tokens[grammatical], scored[grammatical] = self._pack(stream, length, grammatical)
        recall = draw_recall(stream, self.tokenizer, self.num_pairs, length, recalling)
        tokens[recalling], scored[recalling], _ = recall
        return self._batch(tokens, scored, kind, number, modules)

    @cached_property
    def sentences(self) -> Sentences:
        """Those of all commands, trained ones first."""
        return Sentences.write((*self.split.train, *self.split.ood), self.tokenizer)

    def _choose_trained(self, stream: Stream, length: int) -> Int[Tensor, "rows sentences"]:
        """Trained commands, enough to fill a window of this length."""
        shortest = int(self.sentences.ends[: len(self.split.train)].min())
        return stream.integers(len(self.split.train), -(-length // shortest) + 1)

    def _pack(self, stream: Stream, length: int, rows: Int[Tensor, " rows"]) -> tuple[Tensor, Tensor]:
        """These rows of windows of packed trained commands: tokens, and which belong to answers."""
        longest = self.sentences.tokens.shape[1]
        chosen, first = self._choose_trained(stream, length), stream.integers(longest, 1)
        tokens, answers, _ = self.sentences.pack(chosen[rows], length + longest)
        places = first[rows] + torch.arange(length)
        return tokens.gather(1, places), answers.gather(1, places)

    def _make_grammar_rows(self, split: SplitName, stream: Stream) -> Batch:
        """Two or more sentences of trained commands, then the command of the row, whose answer alone is scored."""
        number, modules = self.task.draw_compositions(split, stream)
        length = min(3 * self.sentences.tokens.shape[1], self.length) + 1
        last = number + (len(self.split.train) if split == "ood" else 0)
        chosen = torch.cat([self._choose_trained(stream, length), last[:, None]], dim=1)
        ends = self.sentences.ends[chosen].sum(dim=1, keepdim=True)
        tokens, answers, sentence = self.sentences.pack(chosen, int(ends.max()))
        answers = answers & (sentence == chosen.shape[1] - 1)
        places = ends - length + torch.arange(length)
        tokens, answers = tokens.gather(1, places), answers.gather(1, places)
        return self._batch(tokens, answers, torch.full_like(number, GRAMMAR), number, modules)

    def _make_recall_rows(self, stream: Stream) -> Batch:
        length = TOKENS_PER_PAIR * self.num_pairs
        tokens, recalled, key = draw_recall(stream, self.tokenizer, self.num_pairs, length)
        return self._batch(tokens, recalled, torch.full_like(key, RECALL), key, FIRST_KEY + key[:, None])

    def _make_text_rows(self, stream: Stream) -> Batch:
        """Windows of held-out documents, equally likely; the first starts with the document."""
        chosen = self._windows[stream.integers(len(self._windows), 1)[:, 0].numpy()]
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

    @cached_property
    def _windows(self) -> np.ndarray:
        return self.corpus.windows(self.length)

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
        logits[list(self.tokenizer.rare[NUM_KEYS : NUM_KEYS + NUM_VALUES])] = 0.0
        return logits.log_softmax(dim=0)

    @cached_property
    def _answer_frequencies(self) -> Float[Tensor, "places vocabulary"]:
        """Of the tokens at each place of an answer, over trained commands."""
        trained, lengths = len(self.split.train), self.sentences.ends - self.sentences.answers
        counts = torch.full((int(lengths[:trained].max()), self.tokenizer.size), 1e-9, dtype=torch.float32)
        for row, first, length in zip(self.sentences.tokens[:trained], self.sentences.answers, lengths, strict=False):
            counts[torch.arange(int(length)), row[first : first + length]] += 1
        return counts.log()
