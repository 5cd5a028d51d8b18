"""Whether instances keep the promise of their split: made from its compositions, and from no others.

A certificate is computed from the compositions alone. It says nothing about what `make_batch` really draws. The audit looks
at instances: those of training must not hold held-out compositions, and no split may hold those of another. It trusts the
modules that a batch states in `latents`; a task that states the wrong ones cannot be found out this way.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from recombine.compositions import Composition
from recombine.tasks.base import Batch, SplitName, Task
from recombine.tasks.evaluation import evaluation_batches


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
