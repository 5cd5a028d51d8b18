"""Readings: the instances, key-query pairs and labels that a probe uses, and the expected effect of a swapped code.

`Task.reading()` returns a `Reading`. The default suits any task: instances as in training, the last token attending to
itself, and the modules of the instance as labels. A family that needs another reading overrides `Task.reading` and keeps
its own subclass in its folder.

Instances that share some of their parts are easier to decode than instances as in training. Such variants are readings of
their own (`Reading.variants`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from recombine.tasks.base import Task
from recombine.tasks.sampling import Batch, SplitName, evaluation_batches


@dataclass(frozen=True, kw_only=True)
class Counterfactual:
    """The answers to expect if the latent codes decide: `own` with the row's own codes, `other` with its partner's.

    Answers are whole numbers, which are counted, or real numbers, where the slope from `own` to `other` is measured.
    """

    own: Shaped[Tensor, " rows *outputs"]
    other: Shaped[Tensor, " rows *outputs"]
    distinct: Bool[Tensor, " rows"]
    """Rows where the two answers differ; the others are left out."""


class Reading:
    """The default: the code of the last token attending to itself, and the modules of the instance."""

    version: int = 1
    """Raise it when the same task is read differently: its runs are then probed again."""
    instances: str = "instances like those in training"
    codes: str = "the last token attending to itself"
    labels: str = "the modules of the instance"
    group_names: tuple[str, ...] = ()
    """Names of the groups of `group`, where results are also listed by group."""

    pictured: str | None = None
    """Name of the variant whose codes pictures show; otherwise they show those of this reading."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def variants(self) -> Mapping[str, Reading]:
        """Readings of other instances, by name, whose codes are decoded as well."""
        return {}

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """The first instances of a split."""
        return evaluation_batches(self.task, split, num_instances, device)

    @property
    def keys(self) -> tuple[int, ...]:
        """Keys whose code with the last query is read, counted from the end of the sequence."""
        return (-1,)

    @property
    def modules(self) -> tuple[int, ...]:
        """The modules to decode: all that occur in training or in held-out compositions."""
        return tuple(self.task.split.certificate.coverage)

    @property
    def module_names(self) -> tuple[str, ...]:
        """A name per label."""
        names = [self.task.describe((module,)) for module in self.modules]
        return tuple(name[1:-1] if name.startswith("(") and name.endswith(")") else name for name in names)

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        """1 if the row uses the module, else 0."""
        modules = torch.tensor(self.modules, device=batch.latents.device)
        return (batch.latents[:, :, None] == modules).any(dim=1).float()

    def target(self, batch: Batch) -> Shaped[Tensor, " rows"]:
        """The target at the last token, as a number."""
        return batch.targets.reshape(len(batch), -1)[:, -1]

    # swapping latent codes between instances

    @property
    def swap(self) -> Reading | None:
        """The reading of the instances whose codes can be swapped, or None if the task defines no such experiment.

        The reading that is returned defines `group`, `read_answer` and `counterfactual`.
        """
        return None

    def group(self, batch: Batch) -> Int[Tensor, " rows"]:
        """Codes are swapped between rows of different groups; by default, of different compositions."""
        return batch.composition

    def read_answer(self, predictions: Tensor) -> Shaped[Tensor, " rows *outputs"]:
        """The model's answer at the last token; by default, its real numbers."""
        return predictions.reshape(len(predictions), -1, self.task.output_dim)[:, -1].double()

    def counterfactual(
        self, batch: Batch, partner: Int[Tensor, " rows"], answers: Shaped[Tensor, " rows *outputs"]
    ) -> Counterfactual:
        """The answers to expect when row i is given the codes of row `partner[i]`.

        `answers` are the model's own, without a swap. The default is for instances that all ask the same last query: the
        codes of the partner should give the model's answer to the partner.
        """
        everywhere = torch.ones(len(batch), dtype=torch.bool, device=answers.device)
        return Counterfactual(own=answers, other=answers[partner], distinct=everywhere)


class StrengthReading(Reading):
    """For tasks that mix modules, with the strength of each module in `info["strengths"]`."""

    labels = "the strength of each module in the task"

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return batch.info["strengths"][:, list(self.modules)]
