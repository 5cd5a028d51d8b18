"""What a probe reads of functions learned in context: the strength of each module; codes are swapped at the same query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from recombine.tasks.base import Batch, SplitName
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.modular.teacher import apply_teacher
from recombine.tasks.reading import Reading, StrengthReading


class InContextReading(StrengthReading):
    """Functions learned in context; codes are swapped between sequences with the same last query."""

    task: InContext

    def __init__(self, task: InContext) -> None:
        super().__init__(task)

    @property
    def swap(self) -> Reading:
        return SameQueryReading(self.task)


class SameQueryReading(InContextReading):
    """Functions learned in context, all with the same last query."""

    instances = "every function with the same last query"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        task = self.task
        shared_token = task.sample("test", 0, batch_size=1, device=device).inputs[:, -1:]
        for batch in super().batches(split, num_instances, device):
            inputs, targets = batch.inputs.clone(), batch.targets.clone()
            inputs[:, -1:] = shared_token
            x = inputs[:, -1:, : task.input_size]
            targets[:, -1:] = apply_teacher(task.teacher_on(device), batch.info["strengths"], x)
            yield replace(batch, inputs=inputs, targets=targets)
