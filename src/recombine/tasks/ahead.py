"""Training batches for a loop that takes one after the other: several are made at once, ahead of their use.

In a small batch the calls cost more than the numbers, so a task may make several batches in the calls of one
(`Task.sample_many`). Batch i is always made together with the others of its group, the batches from i - i % n to the next
multiple of n, with n = `task.count_batches_at_once(batch_size)`. The last bits of a matrix product can depend on the number
of its rows; with fixed groups a training that resumes at any step sees the same bits as one that never stopped.
"""

from __future__ import annotations

import torch

from recombine.tasks.base import Task
from recombine.tasks.batch import Batch


class Ahead:
    """The training batches of a task; keeps the group that the last batch belongs to."""

    def __init__(
        self, task: Task, *, batch_size: int, rows: range | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.task = task
        self.batch_size = batch_size
        self.rows = rows
        self.device = device
        self.group_size = task.count_batches_at_once(batch_size)
        self._first = -1
        self._group: list[Batch] = []

    def take(self, index: int) -> Batch:
        """Training batch `index`."""
        first = index - index % self.group_size
        if first != self._first:
            self._group = self.make_group(first)
            self._first = first
        return self._group[index - first]

    def make_group(self, first: int) -> list[Batch]:
        """The batches that are made together, from a multiple of the group's size on."""
        return self.task.sample_many(
            "train", first, self.group_size, batch_size=self.batch_size, rows=self.rows, device=self.device
        )
