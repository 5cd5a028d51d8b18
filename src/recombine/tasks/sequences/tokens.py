"""The sequences of a task over sequences: which lengths or corners are trained and held out, and how tokens are drawn.

Tokens are uniform in [0, 1]^d. What is held out:

- `lengths`: train on 2..10 tokens, `ood` has 11..100. A sequence of T tokens applies one and the same module T times, so its
  composition is the multiset of T copies of module 0.
- `corners`: all sequences have 10 tokens. In training Σ_t x_t stays in [0.25 T, 0.75 T] on the first half of the features
  (by rejection); in `ood` each feature takes all its tokens from [0, 0.25] or all from [0.75, 1]. Module 2i is "feature i
  is low", 2i + 1 "feature i is high": training mixes them over time, a held-out corner has one of both for each feature.
  Of all corners of the cube 64 are drawn, which is our choice.

Shorter rows are padded with zeros at the end.

Padding behind the end of sequences of different lengths.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.random import Stream
from recombine.tasks.base import Task
from recombine.tasks.native import layers
from recombine.tasks.sampling import Batch, SplitName, once_per_device


def mark_real(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Bool[Tensor, "b t"]:
    """True for tokens, False for padding."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def clear_padding(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b t features"]:
    """Multiply the features of padding by 0, in place."""
    if layers.changes_in_place(x, lengths):
        return layers.clear_padding(x, lengths)
    return x.mul_(mark_real(x, lengths)[..., None])


Generalisation = Literal["lengths", "corners"]
NUM_CORNERS = 64


@dataclass(frozen=True, kw_only=True)
class SequenceTask(Task):
    """A task over sequences of random tokens, labelled at every position."""

    generalise_to: Generalisation = "lengths"
    """What is never trained: longer sequences, or features that stay low or high."""
    token_dim: int = 20
    """Number of features per token."""
    min_length: int = 2
    """Minimum length of a training sequence, where lengths are held out."""
    max_length: int = 10
    """Maximum length of a training sequence; where corners are held out, the length of every sequence."""
    longest: int = 100
    """Maximum length of a held-out sequence, where lengths are held out."""
    support: float = 1.0
    """Width of the interval around 0.5 that training tokens come from; held-out tokens come from all of [0, 1]."""
    num_sequences: int | None = None
    """Number of different training sequences (default: every sequence is new)."""

    def __post_init__(self) -> None:
        check_choice("generalise_to", self.generalise_to, get_args(Generalisation))
        check_positive(token_dim=self.token_dim)
        check_positive(min_length=self.min_length, max_length=self.max_length, longest=self.longest)
        if self.num_sequences is not None:
            check_positive(num_sequences=self.num_sequences)
        if self.generalise_to == "lengths" and self.min_length > self.max_length:
            raise InputError(f"min_length is {self.min_length}: expected at most max_length = {self.max_length}")
        if self.generalise_to == "lengths" and self.longest <= self.max_length:
            raise InputError(f"longest is {self.longest}: expected more than max_length = {self.max_length}")
        if not 0 < self.support <= 1:
            raise InputError(f"support is {self.support}: expected a width above 0 and at most 1")

    @abstractmethod
    def label(
        self, x: Float[Tensor, "b t tokens"], lengths: Int[Tensor, " b"] | None = None
    ) -> tuple[Float[Tensor, "b t hidden"], Float[Tensor, "b t targets"]]:
        """Hidden states and outputs for these tokens, in tensors of their own; 0 behind `lengths` tokens."""

    @property
    def input_dim(self) -> int:
        return self.token_dim

    @property
    def sequence_length(self) -> int:
        return self.longest if self.generalise_to == "lengths" else self.max_length

    @property
    def train_length(self) -> int:
        return self.max_length

    @property
    def num_read(self) -> int:
        return self.sequence_length

    @cached_property
    def split(self) -> CompositionSplit:
        if self.generalise_to == "lengths":
            return CompositionSplit(
                train=tuple((0,) * length for length in range(self.min_length, self.max_length + 1)),
                ood=tuple((0,) * length for length in range(self.max_length + 1, self.longest + 1)),
            )
        places = 2 * torch.arange(self.token_dim)
        high = Stream(self.name, self.seed, "corners", rows=range(NUM_CORNERS)).integers(2, self.token_dim)
        corners = sorted({tuple(corner) for corner in (places + high).tolist()})
        return CompositionSplit(train=(tuple(range(2 * self.token_dim)),), ood=tuple(corners))

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Sequences of the split with the teacher's outputs; `info` has their lengths and the teacher's hidden states."""
        return self._label(split, *self._draw_tokens(split, stream, padded=True))

    def sample_length(
        self,
        split: SplitName,
        index: int,
        length: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split with sequences of one length, which must be one of the lengths of the split."""
        shortest, longest = self.lengths(split)
        if not shortest <= length <= longest:
            raise InputError(f"length is {length}: expected {shortest} to {longest}, the lengths of {split!r}")
        stream = self.stream(split, index, batch_size=batch_size, rows=rows, device=device)
        x, composition, lengths = self._draw_tokens(split, stream)
        lengths = torch.full_like(lengths, length)
        if self.generalise_to == "lengths":
            composition = lengths - shortest
        return self._label(split, x[:, :length], composition, lengths)

    def _draw_tokens(
        self, split: SplitName, stream: Stream, *, padded: bool = False
    ) -> tuple[Float[Tensor, "b t tokens"], Int[Tensor, " b"], Int[Tensor, " b"]]:
        """Tokens, 0 behind the length if they are to be padded; the number of the composition; the length."""
        if split == "train" and self.num_sequences is not None:
            number = stream.integers(self.num_sequences, 1)[:, 0]
            x, composition, lengths = (column[number] for column in self._pool(stream.device))
        elif padded and self.generalise_to == "lengths" and (self.support == 1 or split == "ood"):
            composition, lengths = self._draw_lengths(split, stream)
            return stream.uniform_sequences(lengths, self.lengths(split)[1], self.token_dim), composition, lengths
        else:
            x, composition, lengths = self._draw(split, stream)
        # in place, for it was drawn for this batch alone
        return clear_padding(x, lengths) if padded else x, composition, lengths

    def _label(
        self,
        split: SplitName,
        x: Float[Tensor, "b t tokens"],
        composition: Int[Tensor, " b"],
        lengths: Int[Tensor, " b"],
    ) -> Batch:
        """The batch of these sequences, with the outputs and hidden states of the teacher."""
        hidden, y = self.label(x, lengths)
        modules = self.look_up_modules(split, composition)
        if self.generalise_to == "lengths":
            modules = modules[:, : x.shape[1]].contiguous()  # module 0 at every token, -1 for padding
        return Batch(x, y, modules, {"composition": composition, "length": lengths, "hidden": hidden})

    def lengths(self, split: SplitName) -> tuple[int, int]:
        """The fewest and the most tokens of a sequence of a split."""
        if self.generalise_to == "corners":
            return self.max_length, self.max_length
        return (self.max_length + 1, self.longest) if split == "ood" else (self.min_length, self.max_length)

    def _draw_lengths(self, split: SplitName, stream: Stream) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
        """The number of the composition, and the length."""
        shortest, longest = self.lengths(split)
        composition = stream.integers(len(self.split.compositions(split)), 1)[:, 0]
        lengths = composition + shortest if self.generalise_to == "lengths" else torch.full_like(composition, longest)
        return composition, lengths

    def _draw(self, split: SplitName, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, before padding; the number of the composition; the length."""
        composition, lengths = self._draw_lengths(split, stream)
        x = stream.uniform(self.lengths(split)[1], self.token_dim)
        if split != "ood":
            x = self.narrow(x)
        if self.generalise_to == "corners" and split == "ood":
            corners = (torch.tensor(self.split.ood, device=x.device) % 2).to(x.dtype)  # not the default type
            x = x / 4 + 0.75 * corners[composition][:, None]
        elif self.generalise_to == "corners":
            x = self._keep_sums_central(x, stream)
        return x, composition, lengths

    def narrow(self, x: Tensor) -> Tensor:
        return x if self.support == 1 else 0.5 + (x - 0.5) * self.support

    def _keep_sums_central(self, x: Tensor, stream: Stream) -> Tensor:
        """Draw again where Σ_t x_t of a feature of the first half leaves the middle; a row depends on its own draws only."""
        constrained = torch.arange(self.token_dim, device=x.device) < self.token_dim // 2
        while True:
            outside = ((x.mean(dim=1) - 0.5).abs() > 0.25) & constrained
            if not outside.any():
                return x
            x = torch.where(outside[:, None], self.narrow(stream.uniform(*x.shape[1:])), x)

    @once_per_device
    def _pool(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct training sequences."""
        rows = range(self.num_sequences or 0)
        return self._draw("train", Stream(self.name, self.seed, "pool", rows=rows, device=device))

    def split_title(self, split: SplitName) -> str:
        lengths = {"test": "trained lengths", "ood": "longer sequences"}
        corners = {"test": "trained corners", "ood": "held-out corners"}
        return (lengths if self.generalise_to == "lengths" else corners).get(split, super().split_title(split))

    def split_meaning(self, split: SplitName) -> str:
        if self.generalise_to == "lengths":
            ends = {"test": (self.min_length, self.max_length), "ood": (self.max_length + 1, self.longest)}
            shortest, longest = ends.get(split, ends["test"])
            longer = "longer sequences than trained" if split == "ood" else "new sequences of the lengths trained"
            return f"{longer}, {shortest} to {longest} tokens"
        corners = {"test": "new sequences as trained", "ood": "sequences in corners of the cube that are never trained"}
        return corners.get(split, super().split_meaning(split))

    def describe(self, composition: Composition) -> str:
        if self.generalise_to == "lengths":
            return f"{sum(module >= 0 for module in composition)} tokens"
        if len(composition) == 2 * self.token_dim:
            return "every feature low and high, in turn"
        return "features " + "".join("+" if module % 2 else "−" for module in composition)
