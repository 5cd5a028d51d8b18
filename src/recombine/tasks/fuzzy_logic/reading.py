"""What a probe reads of fuzzy logic: instances as in training, and instances that share their examples or their query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import torch

from recombine.tasks.base import Batch, SplitName
from recombine.tasks.fuzzy_logic.task import FuzzyLogic, evaluate_function
from recombine.tasks.reading import Reading, Variant


class FuzzyLogicReading(Reading):
    """Instances as in training, one logistic decoder per term; and two variants with a shared part."""

    task: FuzzyLogic

    def __init__(self, task: FuzzyLogic) -> None:
        super().__init__(task)

    @property
    def variants(self) -> Mapping[Variant, Reading]:
        return {"pictured": SharedReading(self.task, "examples"), "same_query": SharedReading(self.task, "query")}

    @property
    def swap(self) -> Reading:
        return SharedReading(self.task, "query")


class SharedReading(FuzzyLogicReading):
    """Fuzzy logic functions that all have the same examples or the same query."""

    def __init__(self, task: FuzzyLogic, shared: Literal["examples", "query"]) -> None:
        super().__init__(task)
        self.shared = shared
        self.instances = f"every function with the same {shared}"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        tokens = slice(None, -1) if self.shared == "examples" else slice(-1, None)
        shared_x = self.task.sample("test", 0, batch_size=1, device=device).inputs[:, tokens, :-1]
        for batch in super().batches(split, num_instances, device):
            x = batch.inputs[..., :-1].clone()
            x[:, tokens] = shared_x
            y = evaluate_function(x, batch.latents)
            inputs = torch.cat([x, y[..., None]], dim=-1)
            inputs[:, -1, -1] = 0
            yield replace(batch, inputs=inputs, targets=y[:, -1])
