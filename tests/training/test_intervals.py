"""Intervals over seeds: the degenerate case, pairing, and coverage on simulated runs."""

import numpy as np
import pytest
import torch

from recombine.foundation.display import Column, format_value
from recombine.foundation.errors import InputError
from recombine.training.intervals import (
    SeedScore,
    compare,
    compare_seeds,
    score_results,
    score_seeds,
    subtract,
)
from recombine.training.score import CompositionSums
from recombine_papers.base import cell

NUM_COMPOSITIONS = 46


def simulate(generator, num_runs, *, between, shift=0.0, shared=None):
    """Runs whose true score is 0.5 + shift; `between` is the deviation of seeds, that of compositions is 0.05."""
    runs = []
    for seed in range(num_runs):
        counts = (
            generator.integers(5, 15, NUM_COMPOSITIONS).astype(float) if shared is None else np.array(shared[seed][1])
        )
        means = (
            0.5 + shift + generator.normal(0, between) + generator.normal(0, 0.05 * NUM_COMPOSITIONS**0.5, len(counts))
        )
        runs.append([list(means * counts), list(counts)])
    return runs


def test_one_seed_has_the_interval_over_compositions():
    (sums,) = simulate(np.random.default_rng(0), 1, between=0.1)
    result = score_seeds([sums])
    plain = CompositionSums(len(sums[0]))
    plain.totals["r2"] = torch.tensor(sums, dtype=torch.float64)
    assert (result.low, result.high) == plain.interval("r2")
    assert result.value == pytest.approx(plain.value("r2"))
    (other,) = simulate(np.random.default_rng(1), 1, between=0.1, shared=[sums])
    difference, expected = compare_seeds([sums], [other]), compare(sums, other)
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high))


def test_the_value_is_the_mean_over_seeds_whatever_their_order():
    runs = simulate(np.random.default_rng(2), 4, between=0.2)
    result = score_seeds(runs)
    values = [sum(numerators) / sum(denominators) for numerators, denominators in runs]
    assert result.value == pytest.approx(np.mean(values))
    assert result.values == pytest.approx(values)
    assert result.low < result.value < result.high
    assert score_seeds(runs[::-1]).value == pytest.approx(result.value)


def test_compositions_that_never_occurred_are_left_out():
    (sums,) = simulate(np.random.default_rng(3), 1, between=0)
    padded = [[*sums[0], 0.0], [*sums[1], 0.0]]
    assert score_seeds([padded, padded]) == score_seeds([sums, sums])


def draw_scores(generator, num_simulations, num_runs, num_compositions, kind):
    """Simulated runs and the true score: deviations of .05 between seeds and .15 between compositions, as measured.

    A *score* counts right answers; a *ratio* has denominators that vary by half of their mean, about as much as any stored one;
    a *difference* is that of two predictors on the same instances.
    """
    shape = (num_simulations, num_runs, num_compositions)
    counts = generator.integers(20, 60, shape).astype(float)
    hardness = generator.normal(0, 0.15, shape)
    seeds = generator.normal(0, 0.05, (num_simulations, num_runs, 1))
    truth = 0.6 + (seeds[:, 0, 0] if num_runs == 1 else 0)  # one run is about its own network
    if kind == "ratio":
        counts = counts * generator.gamma(4.0, 1.0, shape)
    first = (0.6 + seeds + hardness + generator.normal(0, 0.08, shape)) * counts
    second = (0.5 + hardness + generator.normal(0, 0.08, shape)) * counts
    truths = np.broadcast_to(truth - (0.5 if kind == "difference" else 0), num_simulations)
    return truths, np.stack([first, counts], axis=2).tolist(), np.stack([second, counts], axis=2).tolist()


GRID = [(kind, runs, n) for kind in ("score", "difference", "ratio") for runs in (1, 2, 3, 5) for n in (3, 5, 10, 40)]
QUICK = {
    ("score", 1, 3),
    ("score", 3, 40),
    ("difference", 1, 10),
    ("difference", 3, 5),
    ("ratio", 2, 3),
    ("ratio", 5, 10),
}


@pytest.mark.parametrize(
    ("kind", "num_runs", "num_compositions"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in GRID],
)
def test_intervals_cover_the_truth(kind, num_runs, num_compositions):
    """Nominal 95 % intervals cover it in 93 to 97 % of simulations."""
    number = 1_500
    generator = np.random.default_rng([num_runs, num_compositions, len(kind)])
    truths, runs, others = draw_scores(generator, number, num_runs, num_compositions, kind)
    results = map(compare_seeds, runs, others) if kind == "difference" else map(score_seeds, runs)
    covered = sum(result.low <= truth <= result.high for result, truth in zip(results, truths, strict=True))
    assert 0.93 <= covered / number <= 0.97


def test_pairing_removes_what_both_share():
    """Seeds that are hard for both leave the difference as sharp as it is."""
    generator = np.random.default_rng(5)
    runs = simulate(generator, 3, between=0.3)
    better = [[[n + 0.1 * d for n, d in zip(*sums, strict=True)], sums[1]] for sums in runs]
    difference = compare_seeds(better, runs)
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    assert score_seeds(better).low < score_seeds(runs).value


def test_what_cannot_be_compared():
    runs = simulate(np.random.default_rng(6), 3, between=0.1)
    with pytest.raises(InputError, match="3 runs and 2 others: expected one of each for every seed"):
        compare_seeds(runs, runs[:2])
    with pytest.raises(InputError, match="not of the same instances"):
        compare_seeds(runs, runs[::-1])
    with pytest.raises(InputError, match="no runs to score"):
        score_seeds([])


def make_result(value, chance=0.0, ceiling=1.0, metric="r2"):
    scores = {"ood": {metric: {"value": value, "chance": chance, "ceiling": ceiling}}}
    return {"scores": scores, "composition_sums": {"ood": {metric: [[value] * 5, [1.0] * 5]}}}


def test_the_interval_of_a_score_ends_where_scores_end():
    low, high = make_result(0.2), make_result(0.9)
    free = score_seeds([result["composition_sums"]["ood"]["r2"] for result in (low, high)])
    score = score_results([low, high], "ood", "r2")
    assert free.high > 1
    assert (score.low, score.high) == (free.low, 1.0)
    other = make_result(0.2, ceiling=1.25)
    assert score_results([other, high], "ood", "r2").high == 1.25  # the highest of the runs
    errors = [make_result(value, chance=1.0, ceiling=0.0) for value in (0.1, 0.8)]  # lower is better
    score = score_results(errors, "ood", "r2")
    assert score.low == 0.0
    assert score.high > 1
    accuracies = [make_result(value, metric="feature_accuracy") for value in (0.1, 0.8)]
    assert score_seeds([result["composition_sums"]["ood"]["feature_accuracy"] for result in accuracies]).low < 0
    assert score_results(accuracies, "ood", "feature_accuracy").low == 0.0
    assert score_results([make_result(0.1), make_result(0.8)], "ood", "r2").low < 0  # R² has no lowest value
    unknown = make_result(0.2, ceiling=None)
    assert score_results([unknown, high], "ood", "r2") == free
    assert score_results([high], "ood", "r2") == score_seeds([high["composition_sums"]["ood"]["r2"]])


def test_two_seeds_are_shown_one_by_one():
    score = SeedScore(value=0.5, low=-4.0, high=5.0, values=(0.9, 0.1))
    assert score.pair == (0.1, 0.9)
    assert format_value(cell(score), Column(name="")) == "0.500 (0.100 and 0.900)"
    assert cell(score).as_dict() == {"value": 0.5, "low": -4.0, "high": 5.0, "values": [0.9, 0.1]}
    three = SeedScore(value=0.5, low=0.25, high=0.75, values=(0.9, 0.2, 0.4))
    assert three.pair is None
    assert format_value(cell(three), Column(name="")) == "0.500 (0.250 … 0.750)"
    assert SeedScore(value=0.5, low=0.25, high=0.75, values=(0.5, 0.5)).pair is None  # one number for both
    assert subtract(three, SeedScore(value=0.2, low=0.1, high=0.3, values=(0.1, 0.3))).pair is None  # three against two


def test_runs_of_different_processors_are_paired_in_spite_of_rounding():
    sums, rounded = [[1.0, 2.0], [4.0, 8.0]], [[2.0, 2.0], [4.0 * (1 + 1e-7), 8.0]]
    assert compare_seeds([rounded], [sums]).value > 0
    with pytest.raises(InputError, match="not of the same instances"):
        compare_seeds([[[2.0, 2.0], [4.001, 8.0]]], [sums])
