"""Scores of several seeds with their 95 % intervals, and paired differences of two predictors.

The seed determines the split, the data and the initial parameters. A score therefore varies for two reasons: the compositions
in a split, and the seed itself. All intervals are Student's,

    value ± t(n - 1) · standard error,

where n counts what varies independently:

- *one run*: the compositions of its split (`recombine.training.score.standard_error`). The interval is about the score of
  this network on further compositions; what another seed would give is unknown;
- *several seeds*: the seeds. The standard error is the spread of the runs' scores divided by √n. It contains the variation
  between compositions, because every seed draws its own split; where the compositions are the same in all seeds, they are
  what the score is about.

Instances of one composition are not independent, and neither are compositions of one seed: a bootstrap over compositions or
over few seeds is too confident (nominal 95 % intervals cover the truth in 75 % of cases with 3 compositions).
`tests/training/test_intervals.py` measures the coverage on simulated runs for 3 to 40 compositions and 1 to 5 seeds.

Two predictors are compared on the same compositions or over the same seeds, so that what makes these hard cancels. The
difference can be significant even if the two intervals overlap. The interval of a score ends at the ceiling, and that of an
accuracy or an error at 0: the true score lies between them, so the interval covers it as often as before.

With two seeds the interval is thirteen times as wide as the distance of the two values. Tables and pages therefore show the
two values (`SeedScore.pair`); verdicts use the interval, which `--json` includes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.tasks.base import Ratio
from recombine.tasks.sampling import Batch
from recombine.training.score import CompositionSums, Deviations, compute_ratio, deviations

POSITIVE = ("accuracy", "loss")  # metrics that end like this are not below 0


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two predictors on the same instances, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def compare(sums: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Difference:
    """The paired difference of two scores, from their `Score.sums`."""
    return _compare(_as_table(sums), _as_table(other))


def compare_rows(ratio: Ratio, other: Ratio, batch: Batch) -> Difference:
    """The paired difference of a metric of two predictors on the rows of one batch."""
    sums = CompositionSums(int(batch.composition.max()) + 1)
    sums.add({"mine": ratio, "theirs": other}, batch)
    return _compare(sums.totals["mine"], sums.totals["theirs"])


def _compare(mine: Float[Tensor, "2 compositions"], theirs: Float[Tensor, "2 others"]) -> Difference:
    require_same_instances(mine[1], theirs[1])
    value = compute_ratio(mine) - compute_ratio(theirs)
    low, high = (deviations(mine) - deviations(theirs)).interval(value)
    return Difference(value=value, low=low, high=high)


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
    return _summarise([(_as_table(sums),) for sums in runs])


def score_results(results: Sequence[Mapping[str, Any]], split: str, metric: str) -> SeedScore:
    """The mean of a score over the results of runs (`result.json`) with different seeds, within the possible range."""
    score = score_seeds([result["composition_sums"][split][metric] for result in results])
    if metric.endswith(POSITIVE):
        score = replace(score, low=max(score.low, 0.0))
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
    pairs = [(_as_table(run), _as_table(other)) for run, other in zip(runs, others, strict=True)]
    for run, other in pairs:
        require_same_instances(run[1], other[1])
    return _summarise(pairs)


def require_same_instances(mine: Float[Tensor, " compositions"], theirs: Float[Tensor, " others"]) -> None:
    """Require equal denominators per composition, up to rounding on different processors."""
    if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=1e-5, atol=0):
        raise InputError("the two scores are not of the same instances: expected the same task, split and number")


def have_same_instances(run: Sums, other: Sums) -> bool:
    """Whether two scores are of the same instances."""
    try:
        require_same_instances(_as_table(run)[1], _as_table(other)[1])
    except InputError:
        return False
    return True


def _as_table(sums: Sums) -> Float[Tensor, "2 compositions"]:
    counts = [len(row) for row in sums]
    if len(counts) != 2 or counts[0] != counts[1] or sum(sums[1]) == 0:
        raise InputError(f"sums of {counts} compositions: expected numerators and as many denominators, not all 0")
    return torch.tensor(sums, dtype=torch.float64)


def score_values(values: Sequence[float]) -> SeedScore:
    """The mean of one number per seed; a single number has no interval."""
    if not values:
        raise InputError("no values to average: expected at least one")
    numbers = torch.tensor(values, dtype=torch.float64)
    mean = float(numbers.mean())
    low, high = Deviations((numbers - mean) / len(values), len(values)).interval(mean)
    return SeedScore(value=mean, low=low, high=high, values=tuple(values))


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


def _summarise(runs: Sequence[tuple[Tensor, ...]]) -> SeedScore:
    """The mean over runs: per run the table of one score, or the two tables of a difference."""
    if not runs:
        raise InputError("no runs to score: expected at least one")
    ratios = [[compute_ratio(table) for table in run] for run in runs]
    score = score_values([run[0] - sum(run[1:]) for run in ratios])
    fewest = min(int((run[0][1] != 0).sum()) for run in runs)
    if len(runs) > 1:
        return replace(score, num_compositions=fewest)
    first, *others = (deviations(table) for table in runs[0])
    low, high = (first - others[0] if others else first).interval(score.value)
    return replace(score, low=low, high=high, num_compositions=fewest)
