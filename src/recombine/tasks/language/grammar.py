"""A small artificial grammar that is mixed into the text: verbs × nouns × modifiers, some pairs of which are never trained.

    dax wug twice: fep lom fep lom

Every verb and every noun has a word of its own in the answer, and the modifier says in which order and how often they are
repeated. The answer is therefore a function of the command, and a network that has learned verbs, nouns and modifiers can
answer every command. All commands with a held-out pair of verb and noun are held out, with every modifier.

The words are invented, so that text does not help. Modules are numbered: verbs first, then nouns, then modifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit, split_compositions
from recombine.tasks.language.tokenizers import Tokenizer

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
    def write(cls, compositions: Sequence[Composition], tokenizer: Tokenizer, longest: int) -> Sentences:
        parts = [tuple(map(tokenizer.encode, write_command(composition))) for composition in compositions]
        rows = [[*command, *answer] for command, answer in parts]
        return cls(
            torch.tensor([[*row, *[tokenizer.pad] * (longest - len(row))] for row in rows]),
            torch.tensor([len(command) for command, _ in parts]),
            torch.tensor(list(map(len, rows))),
        )

    @cached_property
    def shortest(self) -> int:
        return int(self.ends.min())

    @cached_property
    def shortest_command(self) -> int:
        return int(self.answers.min())

    @cached_property
    def longest_command(self) -> int:
        return int(self.answers.max())

    @cached_property
    def longest_answer(self) -> int:
        return int((self.ends - self.answers).max())

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


def longest_sentence(tokenizer: Tokenizer, compositions: Sequence[Composition]) -> int:
    """The number of tokens of the longest command with its answer."""
    return max(sum(len(tokenizer.encode(part)) for part in write_command(composition)) for composition in compositions)
