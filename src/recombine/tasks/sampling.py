"""How a task makes batches: batch i of a split is a pure function of (task, seed, split, i).

A family implements `make_batch`, which draws all its random numbers from a stream; everything else follows from it: a batch,
some of its rows, or several batches at once.

Tensors that a task computes once per device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from recombine.compositions import CompositionSplit
from recombine.foundation.errors import NEGLIGIBLE, InputError, Settings, check_choice, require_memory
from recombine.random import Stream
from recombine.tasks.batch import Batch

SplitName = Literal["train", "test", "ood", "unknown", "text", "recall"]
SPLIT_TITLES: dict[SplitName, str] = {
    "train": "training",
    "test": "seen compositions",
    "ood": "held-out compositions",
    "unknown": "unseen modules",
}
SPLIT_MEANINGS: dict[SplitName, str] = {
    "train": "training compositions and instances",
    "test": "seen compositions, new instances",
    "ood": "held-out compositions of trained modules",
    "unknown": "modules never trained, or more at once than trained",
}
LARGER_TITLE, LARGER_MEANING = "more modules at once", "more modules at once than in training"  # such an `unknown`


@dataclass(frozen=True, kw_only=True)
class Sampler(Settings, ABC):
    """What samples batches: the half of a task that a training loop needs first."""

    name: ClassVar[str]
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood")
    # How many training batches `sample_many` may make at once, for tasks whose small batches cost more in calls than in
    # numbers. Training always asks for groups that start at a multiple of `count_batches_at_once`.
    max_batches_at_once: ClassVar[int] = 1
    max_numbers_at_once: ClassVar[int] = 1 << 20  # of inputs

    seed: int = 0
    """Random seed for the split, the data and the initial parameters."""

    @cached_property
    @abstractmethod
    def split(self) -> CompositionSplit:
        """Which compositions are trained, held out, unknown."""

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Features of an input token."""

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Tokens of an input."""

    @property
    def train_length(self) -> int:
        """Tokens of an input in training batches, where it is not `sequence_length`."""
        return self.sequence_length

    @abstractmethod
    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """One instance of the split for each row of the stream, from which all random numbers are drawn.

        What a row gets must depend on its own numbers only, so that any part of a batch can be made alone.
        """

    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split; with `rows`, only these rows of it. A pure function of its arguments."""
        return self.make_batch(split, self.stream(split, index, batch_size=batch_size, rows=rows, device=device))

    def sample_many(
        self,
        split: SplitName,
        first: int,
        count: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> list[Batch]:
        """Batches `first` to `first + count - 1` of a split, made at once where the task can (`max_batches_at_once`).

        They are what `sample` returns, up to the rounding of matrix products, which may depend on the number of rows.
        """
        indices = range(first, first + count)
        streams = [self.stream(split, index, batch_size=batch_size, rows=rows, device=device) for index in indices]
        if self.max_batches_at_once == 1 or count <= 1 or not len(streams[0]):
            return [self.make_batch(split, stream) for stream in streams]
        return self.make_batch(split, Stream.chain(streams)).divide(len(streams[0]))

    def count_batches_at_once(self, batch_size: int) -> int:
        """How many training batches are made at once: the largest power of two that both limits allow."""
        room = self.max_numbers_at_once // (batch_size * self.train_length * self.input_dim)
        return 1 << (max(1, min(room, self.max_batches_at_once)).bit_length() - 1)

    def stream(
        self, split: SplitName, index: int, *, batch_size: int, rows: range | None, device: torch.device | str
    ) -> Stream:
        """The random numbers of batch `index` of a split, or of some of its rows; refuses a split without compositions."""
        check_choice("split", split, self.splits)
        if not self.split.compositions(split):
            raise InputError(f"split {split!r} of task {self.name!r} is empty: {self.explain_empty(split)}")
        rows = range(batch_size) if rows is None else rows
        self.check_batch_size(len(rows))
        return Stream(self.name, self.seed, split, index, rows=rows, device=device)

    def check_batch_size(self, batch_size: int) -> None:
        """Raise an error if a batch does not fit into memory."""
        length, width = self.sequence_length, self.input_dim
        num_bytes = 4 * batch_size * length * width
        if num_bytes > NEGLIGIBLE:
            require_memory(num_bytes, f"a batch of {batch_size:,} × {length:,} × {width:,} numbers")

    def explain_empty(self, split: SplitName) -> str:
        """Why a split has no compositions, and what to change: the end of an error message."""
        return "expected settings that leave compositions for it"

    def draw_compositions(
        self, split: SplitName, stream: Stream
    ) -> tuple[Int[Tensor, " rows"], Int[Tensor, "rows size"]]:
        """A uniformly random composition for each row: its number, and its modules, then -1 up to the largest."""
        number = stream.integers(len(self.split.compositions(split)), 1)[:, 0]
        return number, self.look_up_modules(split, number)

    def look_up_modules(self, split: SplitName, number: Int[Tensor, " rows"]) -> Int[Tensor, "rows size"]:
        """The modules of compositions by their number, then -1 up to the largest."""
        table = self._composition_tables.get((split, number.device))
        if table is None:
            compositions = self.split.compositions(split)
            size = max(map(len, compositions))
            filled = [(*composition, *[-1] * (size - len(composition))) for composition in compositions]
            table = torch.tensor(filled, device=number.device)
            self._composition_tables[split, number.device] = table
        return table.index_select(0, number)

    @cached_property
    def _composition_tables(self) -> dict[tuple[SplitName, torch.device], Tensor]:
        return {}


Value = TypeVar("Value")


def once_per_device(make: Callable[[Any, torch.device], Value]) -> Callable[[Any, torch.device | str], Value]:
    """Decorator for a method that takes a device: the value for each device is computed once and kept with the object.

    Used for frozen weights, which would otherwise be copied to the device for every batch.
    """

    @wraps(make)
    def look_up(self: Any, device: torch.device | str) -> Value:
        device = torch.device(device)
        values: dict[torch.device, Value] = vars(self).setdefault(f"{make.__name__} by device", {})
        if device not in values:
            values[device] = make(self, device)
        return values[device]

    return look_up
