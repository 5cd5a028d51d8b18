"""Batches: how tasks generate them, and which ones evaluation uses.

Batch i of a split is a pure function of (task, seed, split, i); see `recombine.random`. A family implements `make_batch`,
which draws all its random numbers from a stream; everything else follows from it: a batch, some of its rows, or several
batches at once.

A split's certificate is computed from its compositions alone. `find_leaks` looks at what `make_batch` really draws: instances
of a split must come from its compositions and from no others. It trusts the modules that a batch states in `latents`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit
from recombine.foundation.display import measure_progress
from recombine.foundation.errors import NEGLIGIBLE, InputError, Settings, check_choice, require_memory
from recombine.random import Stream

SplitName = str  # one of the `splits` of a task
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


@dataclass(frozen=True)
class Batch:
    """Rows of a task. `latents` holds the modules of each row, `info["composition"]` the number of its composition.

    If compositions differ in size, the shorter ones are padded with -1.
    """

    inputs: Tensor
    targets: Tensor
    latents: Int[Tensor, "batch size"]
    info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def composition(self) -> Int[Tensor, " batch"]:
        """Index of each row's composition in `task.split.compositions(split)`."""
        return self.info["composition"]

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def join(cls, batches: Sequence[Batch]) -> Batch:
        """The rows of all batches, one batch after the other."""
        if not batches:
            raise InputError("there are no batches to join: expected at least one")
        return cls(
            torch.cat([batch.inputs for batch in batches]),
            torch.cat([batch.targets for batch in batches]),
            torch.cat([batch.latents for batch in batches]),
            {name: torch.cat([batch.info[name] for batch in batches]) for name in batches[0].info},
        )

    def divide(self, num_rows: int) -> list[Batch]:
        """Batches of `num_rows` rows each, in order: the inverse of `join`. They share their memory with this one."""
        columns = (self.inputs, self.targets, self.latents, *self.info.values())
        count = len(self) // max(1, num_rows)
        if count and len(self) == count * num_rows:  # faster
            parts = [column.unflatten(0, (count, num_rows)).unbind() for column in columns]
        else:
            parts = [column.split(num_rows) for column in columns]
        return [
            Batch(inputs, targets, latents, dict(zip(self.info, info, strict=True)))
            for inputs, targets, latents, *info in zip(*parts, strict=True)
        ]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        info = {name: column.to(device) for name, column in self.info.items()}
        return Batch(self.inputs.to(device), self.targets.to(device), self.latents.to(device), info)


@dataclass(frozen=True, kw_only=True)
class Sampler(Settings, ABC):
    """Base class of tasks, as far as sampling is concerned."""

    name: ClassVar[str]
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood")
    # Maximum number of training batches that `sample_many` generates at once, for tasks whose small batches are dominated by
    # the overhead of calls. Training requests groups that start at a multiple of `count_batches_at_once`.
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

    @property
    def max_rows_at_once(self) -> int:
        """Maximum number of rows per evaluation batch; smaller for tasks with large predictions."""
        return 1_000

    @abstractmethod
    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """One instance of the split for each row of the stream, from which all random numbers are drawn.

        A row may depend on its own random numbers only, so that any part of a batch can be generated alone.
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
        """Number of training batches generated at once: the largest power of two that both limits allow."""
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


def cached_per_device(make: Callable[[Any, torch.device], Value]) -> Callable[[Any, torch.device | str], Value]:
    """Decorator for a method of a device that caches its value per device on the object.

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


MAX_INSTANCES = 100_000_000
BATCH_SIZE = 1_000  # part of the definition of the evaluation streams


def evaluation_batches(
    task: Sampler, split: SplitName, num_instances: int, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """The first `num_instances` rows of a split, at most `task.max_rows_at_once` at a time; progress is shown."""
    if num_instances > MAX_INSTANCES:
        raise InputError(f"num_instances is {num_instances:,}: expected at most {MAX_INSTANCES:,}")
    with measure_progress(f"{task.name} {split}", num_instances) as meter:
        for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
            rows = range(min(BATCH_SIZE, num_instances - first))
            for start in range(0, len(rows), task.max_rows_at_once):
                part = rows[start : start + task.max_rows_at_once]
                yield task.sample(split, index, batch_size=BATCH_SIZE, rows=part, device=device)
                meter.update(first + part.stop)


class Leak(NamedTuple):
    """Instances of a split that are made from compositions of another split, or of none."""

    split: SplitName
    num_foreign: int
    num_instances: int
    composition: Composition  # the first of them
    belongs_to: SplitName | None  # the split that has it, if any

    def __str__(self) -> str:
        owner = "no split" if self.belongs_to is None else repr(self.belongs_to)
        return (
            f"{self.num_foreign:,} of {self.num_instances:,} instances of {self.split!r} are made from compositions that it "
            f"does not have, the first from {list(self.composition)} of {owner}: expected compositions of {self.split!r} only"
        )


def find_leaks(task: Sampler, *, num_instances: int) -> list[Leak]:
    """The leaks of every split among its first instances; none in a correct task."""
    compositions = {split: set(task.split.compositions(split)) for split in task.splits}
    leaks = []
    for split, own in compositions.items():
        batches = evaluation_batches(task, split, num_instances) if own else ()
        foreign = [modules for batch in batches for modules in list_compositions(batch) if modules not in own]
        if foreign:
            owner = next((name for name, some in compositions.items() if foreign[0] in some), None)
            leaks.append(Leak(split, len(foreign), num_instances, foreign[0], owner))
    return leaks


def count_repeated(task: Sampler, *, num_instances: int) -> dict[SplitName, int]:
    """How many of the first instances of each other split are also among as many of `train`, by the bytes of their inputs.

    Where few instances exist, as in small versions of SRAVEN, some of them come up again. They are counted and not left out: the
    definition of the splits, and every score so far, includes them.
    """
    used = [split for split in task.splits if task.split.compositions(split)]
    seen: dict[SplitName, list[bytes]] = {}
    for split in used:
        batches = evaluation_batches(task, split, num_instances)
        seen[split] = [
            blake2b(row.tobytes(), digest_size=16).digest() for batch in batches for row in batch.inputs.numpy()
        ]
    trained = set(seen.pop("train", ()))
    return {split: sum(row in trained for row in rows) for split, rows in seen.items()}


def list_compositions(batch: Batch) -> list[Composition]:
    """The composition of each row, from the modules that the batch states."""
    return [tuple(sorted(module for module in row if module >= 0)) for row in batch.latents.tolist()]
