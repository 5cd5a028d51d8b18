"""The instances used for evaluation: the first rows of a split, in batches of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from recombine.tasks.base import Batch, SplitName, Task

BATCH_SIZE = 1_000  # part of the definition of the evaluation streams


def evaluation_batches(
    task: Task, split: SplitName, num_instances: int, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """The first `num_instances` rows of a split; at most `task.max_rows_at_once` in a batch."""
    for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
        rows = range(min(BATCH_SIZE, num_instances - first))
        for start in range(0, len(rows), task.max_rows_at_once):
            part = rows[start : start + task.max_rows_at_once]
            yield task.sample(split, index, batch_size=BATCH_SIZE, rows=part, device=device)
