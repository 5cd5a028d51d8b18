"""Paired differences of two predictors, and one score with its interval for runs that differ in their random seed.

Two predictors are compared on the same resampled compositions, so that differences in difficulty cancel. The difference can be
significant even if the two intervals overlap.

The seed determines the split, the data and the initial parameters. Scores therefore vary for two reasons: the compositions
in a split, and the seed itself. The 95 % interval of the mean over seeds covers both, from a bootstrap with two levels:
runs are drawn with replacement, then the compositions within each drawn run.

Three seeds are few, and a plain bootstrap over them is too confident: it covers the truth in 75 to 80 % of cases when the
seed matters most. Two corrections are made. The deviation between runs is multiplied by

    sqrt(S / (S - 1)) * t(S - 1) / z        S runs; 97.5 % quantiles of Student's t and of the normal distribution

and the deviation within runs is added only as far as the observed spread between runs falls short of it, because that spread
already contains it. `tests/training/test_seeds.py` measures the coverage on simulated runs. With one run, the interval is the
one over compositions that `recombine.evaluate` returns. The interval of a score ends at the ceiling.

With two runs such an interval is thirteen times as wide as the distance of the two values. Tables and pages therefore show the
two values (`SeedScore.pair`); verdicts use the interval, which `--json` includes.

Two predictors are compared over seeds by the paired difference: the same seeds, and in each the same redrawn compositions.
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
from recombine.random import Stream
from recombine.tasks.base import Ratio
from recombine.tasks.sampling import Batch
from recombine.training.score import NUM_RESAMPLES, CompositionSums, compute_ratio, middle_95_percent, resample


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
    low, high = middle_95_percent(resample(mine) - resample(theirs))
    return Difference(value=compute_ratio(mine) - compute_ratio(theirs), low=low, high=high)


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
    return _summarise([(_as_table(sums),) for sums in runs])


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


def _summarise(runs: Sequence[tuple[Tensor, ...]]) -> SeedScore:
    """The mean over runs: per run the table of one score, or the two tables of a difference."""
    if not runs:
        raise InputError("no runs to score: expected at least one")
    ratios = [[compute_ratio(table) for table in run] for run in runs]
    values = torch.tensor([run[0] - sum(run[1:]) for run in ratios], dtype=torch.float64)
    redrawn = torch.stack([torch.stack([_redraw(run, position) for position in range(len(runs))]) for run in runs])
    resamples = redrawn[0, 0] if len(runs) == 1 else _resample_two_levels(values, redrawn)
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(resamples, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    fewest = min(int((run[0][1] != 0).sum()) for run in runs)
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


def _redraw(run: tuple[Tensor, ...], position: int) -> Float[Tensor, " resamples"]:
    first, *others = (resample(table, position) for table in run)
    return first - others[0] if others else first
