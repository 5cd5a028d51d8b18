"""The instances used for evaluation: the first rows of a split, in batches of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from recombine.errors import InputError
from recombine.progress import measure_progress
from recombine.tasks.base import Batch, SplitName, Task

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
