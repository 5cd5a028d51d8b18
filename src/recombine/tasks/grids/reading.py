"""What a probe reads of grid worlds: the first step of each episode, because the last one may be empty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from recombine.tasks.base import Batch, SplitName
from recombine.tasks.reading import Reading, StrengthReading


class FirstStepReading(Reading):
    """Episodes reduced to their first step. For models that process each step separately this makes no difference."""

    instances = "the first step of each episode, instead of all its steps"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        for batch in super().batches(split, num_instances, device):
            inputs, targets, optimal = (
                steps[:, :1].expand_as(steps) for steps in (batch.inputs, batch.targets, batch.info["optimal"])
            )
            yield replace(batch, inputs=inputs, targets=targets, info={**batch.info, "optimal": optimal})


class PreferenceReading(FirstStepReading, StrengthReading):
    """Mixtures of preferences, read at the first step."""
