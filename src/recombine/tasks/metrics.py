"""Metrics: a numerator and a denominator per row, so that the value over any set of rows is a ratio of sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

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
