"""What a probe reads of sequence teachers: the last token of the longest sequences, and the teacher's hidden state there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.tasks.base import Batch, SplitName
from recombine.tasks.evaluation import BATCH_SIZE
from recombine.tasks.reading import Reading
from recombine.tasks.sequences.teacher import SequenceTeacher


class SequenceTeacherReading(Reading):
    """The teacher's hidden state in place of modules: decoding it is linear identification."""

    task: SequenceTeacher
    instances = "sequences of the greatest length of their split"
    labels = "the teacher's hidden state"

    def __init__(self, task: SequenceTeacher) -> None:
        super().__init__(task)

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        length = self.task.lengths(split)[1]
        for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
            rows = range(min(BATCH_SIZE, num_instances - first))
            yield self.task.sample_length(split, index, length, batch_size=BATCH_SIZE, rows=rows, device=device)

    @property
    def module_names(self) -> tuple[str, ...]:
        return tuple(f"unit {i}" for i in range(self.task.teacher_dim))

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return batch.info["hidden"][:, -1]
