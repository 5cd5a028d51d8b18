"""Intervals over compositions, and paired differences.

Instances of one composition are not independent, so intervals come from a bootstrap over *compositions*: whole
compositions are resampled with replacement, 2,000 times, and the metric is recomputed from their sums. Two predictors
are compared on the same resampled compositions, so that differences in difficulty cancel. The difference can be
significant even if the two intervals overlap.

One score, and one interval, for several runs that differ in their random seed.

The seed determines the split, the data and the initial parameters. Scores therefore vary for two reasons: the compositions
that a split happens to hold, and the seed itself. The 95 % interval of the mean over seeds has both, from a bootstrap with
two levels: runs are drawn with replacement, then the compositions within each drawn run.

Three seeds are few, and a plain bootstrap over them is too confident: it covers the truth in 75 to 80 % of cases when the
seed matters most. Two corrections make the interval honest. The deviation between runs is multiplied by

    sqrt(S / (S - 1)) * t(S - 1) / z        S runs; 97.5 % quantiles of Student's t and of the normal distribution

and the deviation within runs is added only as far as the observed spread between runs falls short of it, because that spread
already contains it. `tests/test_seeds.py` measures the coverage on simulated runs. With one run, the interval is the one over
compositions that `recombine.evaluate` gives. The interval of a score ends at the ceiling, which no predictor can exceed.

With two runs such an interval is honest, but of no use to a reader: it is thirteen times as wide as the two values are apart.
Tables and pages show the two values instead (`SeedScore.pair`); verdicts use the interval, which `--json` has.

Two predictors are compared by the paired difference: the same seeds, and in each the same redrawn compositions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.random import Stream
from recombine.tasks.batch import Batch, Ratio

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


CONFIDENCE = 0.95

Sums = Sequence[Sequence[float]]  # numerators and denominators per composition, as in `composition_sums` of result.json


@dataclass(frozen=True, kw_only=True)
class SeedScore:
    """The mean over seeds with its 95 % interval, and the value of each seed."""

    value: float
    low: float
    high: float
    values: tuple[float, ...]
    num_compositions: int | None = None  # per run, at least; None for numbers that are not scores of compositions

    @property
    def num_seeds(self) -> int:
        return len(self.values)

    @property
    def pair(self) -> tuple[float, float] | None:
        """The values of exactly two seeds, lower first, shown instead of the interval.

        None if they do not differ, or are not all that the mean is of: `subtract` can have more seeds on one side.
        """
        low, high = min(self.values), max(self.values)
        whole = math.isclose((low + high) / 2, self.value, rel_tol=1e-9, abs_tol=1e-12)
        return (low, high) if self.num_seeds == 2 and low < high and whole else None


def score_seeds(runs: Sequence[Sums]) -> SeedScore:
    """The mean of a metric over runs with different seeds."""
    return _summarise([(_SumTable(sums),) for sums in runs])


def score_results(results: Sequence[Mapping[str, Any]], split: str, metric: str) -> SeedScore:
    """The mean of a score over the results of runs (`result.json`) with different seeds, at best their highest ceiling."""
    score = score_seeds([result["composition_sums"][split][metric] for result in results])
    scores = [result["scores"][split][metric] for result in results]
    ends = [(each.get("chance"), each.get("ceiling")) for each in scores]
    known = [(chance, ceiling) for chance, ceiling in ends if chance is not None and ceiling is not None]
    if len(known) < max(len(results), 2):
        return score
    if all(chance < ceiling for chance, ceiling in known):
        best = max(ceiling for _, ceiling in known)
        return replace(score, high=max(score.value, min(score.high, best)))
    if all(chance > ceiling for chance, ceiling in known):  # lower is better
        best = min(ceiling for _, ceiling in known)
        return replace(score, low=min(score.value, max(score.low, best)))
    return score


def compare_seeds(runs: Sequence[Sums], others: Sequence[Sums]) -> SeedScore:
    """The mean difference between two predictors, paired by seed: `runs[i]` and `others[i]` have the same seed."""
    if len(runs) != len(others):
        raise InputError(f"{len(runs)} runs and {len(others)} others: expected one of each for every seed")
    pairs = [(_SumTable(sums), _SumTable(other)) for sums, other in zip(runs, others, strict=True)]
    for run, other in zip(runs, others, strict=True):
        if not have_same_instances(run, other):
            raise InputError("the two scores are not of the same instances: expected the same task, split and number")
    return _summarise(pairs)


def have_same_instances(run: Sums, other: Sums) -> bool:
    """Whether two scores are of the same instances: equal denominators, up to rounding on different processors."""
    mine, theirs = (torch.tensor(sums[1], dtype=torch.float64) for sums in (run, other))
    return mine.shape == theirs.shape and torch.allclose(mine, theirs, rtol=1e-5, atol=0)


def score_values(values: Sequence[float]) -> SeedScore:
    """The mean of one number per seed, with Student's interval over seeds; a single number has none."""
    if not values:
        raise InputError("no values to average: expected at least one")
    from scipy.stats import t

    numbers = torch.tensor(values, dtype=torch.float64)
    mean = float(numbers.mean())
    if len(values) == 1:
        return SeedScore(value=mean, low=float("-inf"), high=float("inf"), values=tuple(values))
    error = float(numbers.std() / len(values) ** 0.5)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return SeedScore(value=mean, low=mean - half, high=mean + half, values=tuple(values))


def subtract(first: SeedScore, second: SeedScore) -> SeedScore:
    """The difference between independent scores, which no instances pair.

    Its interval has the distances of both intervals from their values, squared and added (Zou and Donner 2008).
    """
    below = ((first.value - first.low) ** 2 + (second.high - second.value) ** 2) ** 0.5
    above = ((first.high - first.value) ** 2 + (second.value - second.low) ** 2) ** 0.5
    value = first.value - second.value
    fewest = min(first.num_seeds, second.num_seeds)
    values = tuple(a - b for a, b in zip(first.values[:fewest], second.values[:fewest], strict=True))
    counts = [score.num_compositions for score in (first, second) if score.num_compositions is not None]
    return SeedScore(
        value=value, low=value - below, high=value + above, values=values, num_compositions=min(counts, default=None)
    )


class _SumTable:
    """The sums of one run, over the compositions that occurred."""

    def __init__(self, sums: Sums) -> None:
        totals = torch.tensor(sums, dtype=torch.float64)
        self.totals = totals[:, totals[1] != 0]

    @property
    def value(self) -> float:
        numerator, denominator = self.totals.sum(dim=1).tolist()
        return float(numerator / denominator)

    def resample(self, position: int) -> Float[Tensor, " resamples"]:
        """The metric over redrawn compositions; each position has draws of its own."""
        drawn = _draw(self.totals.shape[1], position, NUM_RESAMPLES)
        numerator, denominator = self.totals[:, drawn].sum(dim=-1)
        return numerator / denominator


@lru_cache(maxsize=16)
def _draw(count: int, position: int, num_resamples: int) -> Int[Tensor, "resamples count"]:
    key = () if position == 0 else (position,)  # the first position has the draws of `evaluate`
    return Stream("bootstrap", *key, rows=range(num_resamples)).integers(count, count)


def _summarise(runs: Sequence[tuple[_SumTable, ...]]) -> SeedScore:
    """Of each run the one table that is scored, or the two whose difference is taken."""
    if not runs:
        raise InputError("no runs to score: expected at least one")
    values = torch.tensor([run[0].value - sum(table.value for table in run[1:]) for run in runs], dtype=torch.float64)
    redrawn = torch.stack([torch.stack([_redraw(run, position) for position in range(len(runs))]) for run in runs])
    resamples = redrawn[0, 0] if len(runs) == 1 else _resample_two_levels(values, redrawn)
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(resamples, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    fewest = min(run[0].totals.shape[1] for run in runs)
    return SeedScore(
        value=float(values.mean()), low=low, high=high, values=tuple(values.tolist()), num_compositions=fewest
    )


def _resample_two_levels(
    values: Float[Tensor, " runs"], redrawn: Float[Tensor, "runs positions resamples"]
) -> Float[Tensor, " resamples"]:
    """The mean over redrawn runs, each with redrawn compositions."""
    num_runs = len(values)
    drawn = Stream("bootstrap of seeds", rows=range(NUM_RESAMPLES)).integers(num_runs, num_runs)
    between = values[drawn].mean(dim=1) - values.mean()
    deviations = redrawn - values[:, None, None]
    positions, resamples = torch.arange(num_runs), torch.arange(NUM_RESAMPLES)[:, None]
    within = deviations[drawn, positions, resamples].mean(dim=1)
    variance_within = deviations.var(dim=(1, 2)).mean()
    explained = values.var() / variance_within if variance_within > 0 else torch.ones(())
    return values.mean() + _widen(num_runs) * between + (1 - explained).clamp_min(0).sqrt() * within


def _widen(num_runs: int) -> float:
    """How much too narrow the bootstrap over so few runs is."""
    from scipy.stats import norm, t

    upper = (1 + CONFIDENCE) / 2
    return float((num_runs / (num_runs - 1)) ** 0.5 * t.ppf(upper, num_runs - 1) / norm.ppf(upper))


def _redraw(run: tuple[_SumTable, ...], position: int) -> Float[Tensor, " resamples"]:
    first, *others = (table.resample(position) for table in run)
    return first - others[0] if others else first
