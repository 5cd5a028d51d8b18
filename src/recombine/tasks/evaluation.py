"""The instances used for evaluation: the first rows of a split, in batches of a fixed size.

Whether instances keep the promise of their split: made from its compositions, and from no others.

A certificate is computed from the compositions alone. It says nothing about what `make_batch` really draws. The audit looks
at instances: those of training must not hold held-out compositions, and no split may hold those of another. It trusts the
modules that a batch states in `latents`; a task that states the wrong ones cannot be found out this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from recombine.compositions import Composition
from recombine.foundation.errors import InputError
from recombine.foundation.progress import measure_progress
from recombine.tasks.base import Task
from recombine.tasks.batch import Batch
from recombine.tasks.sampling import SplitName

MAX_INSTANCES = 100_000_000
BATCH_SIZE = 1_000  # part of the definition of the evaluation streams


def evaluation_batches(
    task: Task, split: SplitName, num_instances: int, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """The first `num_instances` rows of a split, at most `task.max_rows_at_once` at a time; progress is shown."""
    if num_instances > MAX_INSTANCES:
        raise InputError(f"num_instances is {num_instances:,}: expected at most {MAX_INSTANCES:,}")
    return _evaluation_batches(task, split, num_instances, device)


def _evaluation_batches(
    task: Task, split: SplitName, num_instances: int, device: torch.device | str
) -> Iterator[Batch]:
    with measure_progress(f"{task.name} {split}", num_instances) as meter:
        for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
            rows = range(min(BATCH_SIZE, num_instances - first))
            for start in range(0, len(rows), task.max_rows_at_once):
                part = rows[start : start + task.max_rows_at_once]
                yield task.sample(split, index, batch_size=BATCH_SIZE, rows=part, device=device)
                meter.update(first + part.stop)


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Instances of a split that are made from compositions that it does not have."""

    split: SplitName
    num_foreign: int
    num_instances: int
    composition: Composition  # the first of them
    belongs_to: SplitName | None  # the split that has it, if any

    def describe(self, task: Task) -> str:
        """The leak in a line."""
        owner = "no split" if self.belongs_to is None else repr(self.belongs_to)
        return (
            f"{self.num_foreign:,} of {self.num_instances:,} instances of {self.split!r} are made from compositions that it "
            f"does not have, the first from {list(self.composition)} of {owner}: expected compositions of {self.split!r} only"
        )

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "composition": list(self.composition)}


def find_leaks(task: Task, *, num_instances: int) -> list[Leak]:
    """The leaks of every split among its first instances; none in a correct task."""
    owners: dict[Composition, SplitName] = {}
    for split in task.splits:
        for composition in task.split.compositions(split):
            owners.setdefault(composition, split)
    leaks = []
    for split in task.splits:
        own = set(task.split.compositions(split))
        if not own:
            continue
        foreign = [
            composition
            for batch in evaluation_batches(task, split, num_instances)
            for composition in list_compositions(batch)
            if composition not in own
        ]
        if foreign:
            first = foreign[0]
            leaks.append(
                Leak(
                    split=split,
                    num_foreign=len(foreign),
                    num_instances=num_instances,
                    composition=first,
                    belongs_to=owners.get(first),
                )
            )
    return leaks


def list_compositions(batch: Batch) -> list[Composition]:
    """The composition of each row, from the modules that the batch states."""
    return [tuple(sorted(module for module in row if module >= 0)) for row in batch.latents.tolist()]
