"""Imitation of an expert: at each step of the expert's episode, predict an optimal action.

A row is one episode of at most `horizon` steps. A token is one step: the encoding of the task followed by the observation.
Steps after the end are empty, have the target `ENDED` and are ignored. If several actions are optimal, any of them is
right, but the target of the loss is the expert's action: the first in the order of the actions.

Later observations reveal earlier actions. A model that mixes tokens must be causal, or it can read the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from recombine.foundation.errors import InputError
from recombine.tasks.base import METRICS, Metric, Preset, Ratio, Scale, Task
from recombine.tasks.reading import Reading, StrengthReading
from recombine.tasks.sampling import Batch, SplitName


class FirstStepReading(Reading):
    """Episodes reduced to their first step, because the last one may be empty."""

    instances = "the first step of each episode, instead of all its steps"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        for batch in super().batches(split, num_instances, device):
            inputs, targets, optimal = (
                steps[:, :1].expand_as(steps) for steps in (batch.inputs, batch.targets, batch.info["optimal"])
            )
            yield replace(batch, inputs=inputs, targets=targets, info={**batch.info, "optimal": optimal})


class PreferenceReading(FirstStepReading, StrengthReading):
    """Mixtures of preferences, read at the first step."""


ENDED = -1  # the target of a step after the end
NUM_ESTIMATED, BLOCK = 4_096, 512  # episodes from which the best constant is estimated


class Episodes(NamedTuple):
    """Episodes of an expert: its cell and the remaining objects before each step, its action, and all optimal actions."""

    cells: Int[Tensor, "batch step"]
    present: Bool[Tensor, "batch step object"]
    actions: Int[Tensor, "batch step"]  # ENDED after the end
    optimal: Bool[Tensor, "batch step action"]

    @property
    def active(self) -> Bool[Tensor, "batch step"]:
        """True before the episode ends."""
        return self.actions != ENDED


@dataclass(frozen=True, kw_only=True)
class ImitationTask(Task):
    """A task whose targets are an expert's actions; `info["optimal"]` of a batch holds all optimal ones."""

    requires_causal_model: ClassVar[bool] = True
    max_batches_at_once: ClassVar[int] = 8
    max_numbers_at_once: ClassVar[int] = 1 << 22
    models: ClassVar[tuple[str, ...]] = ("mlp", "task_transformer", "hypernetwork")
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS | {
        "action_accuracy": Metric(title="action accuracy"),
        "trajectory_accuracy": Metric(title="trajectory accuracy"),
    }
    column_info: ClassVar[Mapping[str, str]] = {
        **Task.column_info,
        "kinds": "kind of each object",
        "objects": "cell of each object, numbered in reading order",
        "worth": "value of each object in this task",
        "cells": "cell of the agent before each step",
        "present": "which objects remain before each step",
        "optimal": "which actions are optimal at each step",
    }

    horizon: int = 8
    """Maximum number of steps per episode."""

    @classmethod
    @abstractmethod
    def at_scale(cls, scale: Scale) -> ImitationTask:
        """The task at a scale."""

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The paper's preference grid: an MLP of 2 x 1024, constant rate, 3 million steps. The goal grid was released without
        a sweep and uses the same settings. The smaller scales have smaller worlds, narrower models and higher rates.
        """
        model = model or cls.models[0]
        width = {"tiny": 128, "small": 512, "paper": 1024}[scale]
        sizes: dict[str, dict[str, Any]] = {
            "mlp": {"num_layers": 2, "hidden_dim": width},
            "task_transformer": {"num_layers": 2, "embedding_dim": 128, "kqv_dim": 64, "mlp_dim": 256},
            "hypernetwork": {"hidden_dim": width // 8},
        }
        if scale == "paper":
            sizes |= {"task_transformer": {}, "hypernetwork": {"hidden_dim": 256}}
        return Preset(
            task=cls.at_scale(scale),
            model=model,
            sizes=sizes.get(model, {}),
            training={
                "steps": {"tiny": 1_500, "small": 20_000, "paper": 3_000_000}[scale],
                "learning_rate": 1e-4 if scale == "paper" else 1e-3,
                "weight_decay": 1e-3 if scale == "paper" else 1e-2,
                "warmup_steps": 0 if scale == "paper" else 100,
                "schedule": "constant" if scale == "paper" else "cosine",
            },
        )

    @property
    def sequence_length(self) -> int:
        return self.horizon

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Cross-entropy with the expert's actions, the mean over all steps before the end."""
        logits = self.read(predictions)
        return cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=ENDED)

    def loss_weight(self, batch: Batch) -> Tensor:
        return (batch.targets != ENDED).sum()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """Share of steps with an optimal action, and share of episodes with an optimal action at every step.

        Steps are those of the expert's episode: a wrong action does not change later inputs.
        """
        chosen = self.read(predictions).argmax(dim=-1, keepdim=True)
        right = batch.info["optimal"].gather(2, chosen)[..., 0]
        active = batch.targets != ENDED
        whole = (right | ~active).all(dim=1).double()
        return {
            "action_accuracy": Ratio((right & active).sum(dim=1).double(), active.sum(dim=1).double()),
            "trajectory_accuracy": Ratio(whole, torch.ones_like(whole)),
        }

    def read(self, predictions: Tensor) -> Float[Tensor, "batch step action"]:
        """The logits of the actions at each step."""
        if predictions.ndim != 3 or predictions.shape[1:] != (self.horizon, self.output_dim):
            expected = f"(batch, {self.horizon} steps, {self.output_dim} actions)"
            raise InputError(f"predictions have shape {tuple(predictions.shape)}: expected {expected}")
        return predictions

    def chance(self, batch: Batch) -> Float[Tensor, "batch step action"]:
        """At every step the action that is most often optimal in training."""
        return self.predict_answers(torch.full_like(batch.targets, self.best_constant))

    def best_predictions(
        self, batch: Batch, *, split: SplitName | None, metric: str
    ) -> Float[Tensor, "batch step action"]:
        """The expert's actions, for any prior: the inputs determine the task and the map, so this is exact."""
        return self.predict_answers(batch.targets)

    def reading(self) -> FirstStepReading:
        return FirstStepReading(self)

    @cached_property
    def best_constant(self) -> int:
        """The action that is optimal at most steps of 4,096 training episodes."""
        count = torch.zeros(self.output_dim, dtype=torch.int64)
        for index in range(NUM_ESTIMATED // BLOCK):
            batch = self.sample("train", index, batch_size=BLOCK)
            count += batch.info["optimal"][batch.targets != ENDED].sum(dim=0)
        return int(count.argmax())
