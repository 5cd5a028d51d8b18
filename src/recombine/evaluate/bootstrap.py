"""Intervals over compositions, and paired differences.

Instances of one composition are not independent, so intervals come from a bootstrap over *compositions*: whole
compositions are resampled with replacement, 2,000 times, and the metric is recomputed from their sums. Two predictors
are compared on the same resampled compositions, so that differences in difficulty cancel. The difference can be
significant even if the two intervals overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.errors import InputError
from recombine.tasks.base import Batch, Ratio
from recombine.tasks.stream import Stream

NUM_RESAMPLES = 2_000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two predictors on the same instances, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


class CompositionSums:
    """Sums of each metric's numerator and denominator per composition."""

    def __init__(self, num_compositions: int) -> None:
        self.num_compositions = num_compositions
        self.totals: dict[str, Tensor] = {}

    def add(self, metrics: Mapping[str, Ratio], batch: Batch) -> None:
        for name, ratio in metrics.items():
            total = self.totals.setdefault(name, torch.zeros(2, self.num_compositions, dtype=torch.float64))
            rows = torch.stack([ratio.numerator, ratio.denominator]).to("cpu", torch.float64)
            total.index_add_(1, batch.composition.to("cpu"), rows)

    def value(self, name: str) -> float:
        return _value(self.totals[name])

    def interval(self, name: str) -> tuple[float, float]:
        """The middle 95 % of the metric over resampled compositions."""
        return _interval(_resample(self.totals[name]))


def compare(sums: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Difference:
    """The paired difference of two scores, from their `Score.sums`."""
    return _compare(torch.tensor(sums, dtype=torch.float64), torch.tensor(other, dtype=torch.float64))


def compare_rows(ratio: Ratio, other: Ratio, batch: Batch) -> Difference:
    """The paired difference of a metric of two predictors on the rows of one batch."""
    sums = CompositionSums(int(batch.composition.max()) + 1)
    sums.add({"mine": ratio, "theirs": other}, batch)
    return _compare(sums.totals["mine"], sums.totals["theirs"])


def _compare(mine: Float[Tensor, "2 compositions"], theirs: Float[Tensor, "2 others"]) -> Difference:
    if mine.shape != theirs.shape or not torch.equal(mine[1], theirs[1]):
        raise InputError("the two scores are not of the same instances: expected the same task, split and number")
    low, high = _interval(_resample(mine) - _resample(theirs))
    return Difference(value=_value(mine) - _value(theirs), low=low, high=high)


def _value(totals: Float[Tensor, "2 compositions"]) -> float:
    numerator, denominator = totals.sum(dim=1).tolist()
    return float(numerator / denominator)


def _resample(totals: Float[Tensor, "2 compositions"]) -> Float[Tensor, " resamples"]:
    """The metric over resampled compositions (of those that occurred at all)."""
    totals = totals[:, totals[1] != 0]
    drawn = Stream("bootstrap", rows=range(NUM_RESAMPLES)).integers(totals.shape[1], totals.shape[1])
    numerator, denominator = totals[:, drawn].sum(dim=-1)
    return numerator / denominator


def _interval(values: Float[Tensor, " resamples"]) -> tuple[float, float]:
    low, high = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high
