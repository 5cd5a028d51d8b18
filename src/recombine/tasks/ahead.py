"""Training batches, generated in groups ahead of their use.

For small batches the overhead of the calls dominates, so a task may generate several batches at once
(`Task.sample_many`). Batch i is always generated together with the other batches of its group: those from i - i % n to the
next multiple of n, with n = `task.count_batches_at_once(batch_size)`. The last bits of a matrix product can depend on the
number of its rows. With fixed groups, training that resumes at any step sees the same bits as training without a pause.
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
            self._first, self._group = -1, []  # so that the next group can have the memory of this one
            self._group = self.make_group(first)
            self._first = first
        return self._group[index - first]

    def make_group(self, first: int) -> list[Batch]:
        """The batches that are generated together, starting at a multiple of the group's size."""
        return self.task.sample_many(
            "train", first, self.group_size, batch_size=self.batch_size, rows=self.rows, device=self.device
        )
