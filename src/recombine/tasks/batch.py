"""A batch: rows of a task, each with the composition that generated it.

Metrics: a numerator and a denominator per row, so that the value over any set of rows is a ratio of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.foundation.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Rows of a task. `latents` holds the modules of each row, `info["composition"]` the number of its composition.

    If compositions differ in size, the shorter ones are padded with -1.
    """

    inputs: Tensor
    targets: Tensor
    latents: Int[Tensor, "batch size"]
    info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def composition(self) -> Int[Tensor, " batch"]:
        """Index of each row's composition in `task.split.compositions(split)`."""
        return self.info["composition"]

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def join(cls, batches: Sequence[Batch]) -> Batch:
        """The rows of all batches, one batch after the other."""
        if not batches:
            raise InputError("there are no batches to join: expected at least one")
        return cls(
            torch.cat([batch.inputs for batch in batches]),
            torch.cat([batch.targets for batch in batches]),
            torch.cat([batch.latents for batch in batches]),
            {name: torch.cat([batch.info[name] for batch in batches]) for name in batches[0].info},
        )

    def divide(self, num_rows: int) -> list[Batch]:
        """Batches of `num_rows` rows each, in order: the inverse of `join`. They share their memory with this one."""
        columns = (self.inputs, self.targets, self.latents, *self.info.values())
        count = len(self) // max(1, num_rows)
        if count and len(self) == count * num_rows:  # faster
            parts = [column.unflatten(0, (count, num_rows)).unbind() for column in columns]
        else:
            parts = [column.split(num_rows) for column in columns]
        return [
            Batch(inputs, targets, latents, dict(zip(self.info, info, strict=True)))
            for inputs, targets, latents, *info in zip(*parts, strict=True)
        ]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        return self._map(lambda column: column.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        info = {name: change(column) for name, column in self.info.items()}
        return Batch(change(self.inputs), change(self.targets), change(self.latents), info)


MIN_VARIANCE = 1e-12  # of the targets that an R2 compares with


class Ratio(NamedTuple):
    """A metric before it is summed: its value over any set of rows is sum(numerator) / sum(denominator)."""

    numerator: Float[Tensor, " batch"]
    denominator: Float[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a metric is shown, and which way is better."""

    title: str
    higher_is_better: bool = True


# metrics that several families share; a task names its own in `metric_info`
METRICS = {
    "r2": Metric(title="R²"),
    "r2_pooled": Metric(title="R² pooled"),
    "accuracy": Metric(title="accuracy"),
    "loss": Metric(title="squared error", higher_is_better=False),
}


def measure_r2(error: Float[Tensor, " rows *outputs"], variance: Float[Tensor, "rows ..."]) -> dict[str, Ratio]:
    """R² as the mean over rows and outputs of 1 - error² / variance, and pooled, 1 - sum error² / sum variance.

    An output that hardly varies can outweigh hundreds of others in the mean; it cannot in the pooled one.
    """
    variance = variance.clamp_min(MIN_VARIANCE).expand_as(error).reshape(len(error), -1)
    error = error.reshape(len(error), -1)
    total = variance.sum(dim=1)
    return {
        "r2": Ratio((1 - error / variance).mean(dim=1), torch.ones_like(total)),
        "r2_pooled": Ratio(total - error.sum(dim=1), total),
    }
