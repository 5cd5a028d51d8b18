"""Intervals over seeds: the degenerate case, pairing, and coverage on simulated runs."""

import numpy as np
import pytest
import torch

from recombine.foundation.display import Column, format_value
from recombine.foundation.errors import InputError
from recombine.sweeps import cell
from recombine.training.intervals import (
    SeedScore,
    compare,
    compare_seeds,
    score_results,
    score_seeds,
    subtract,
)
from recombine.training.score import CompositionSums

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


@pytest.mark.parametrize("num_runs", [2, 3])
@pytest.mark.parametrize("between", [0.0, 0.05, 0.2])
def test_the_interval_covers_the_truth(num_runs, between, monkeypatch):
    """In at least 92 % of 150 simulations; 95 % are promised, and 3 % is less than two standard errors of the estimate."""
    for module in ("intervals", "score"):
        monkeypatch.setattr(f"recombine.training.{module}.NUM_RESAMPLES", 200)
    generator = np.random.default_rng(num_runs)
    results = [score_seeds(simulate(generator, num_runs, between=between)) for _ in range(150)]
    assert sum(each.low <= 0.5 <= each.high for each in results) >= 138


def test_a_plain_bootstrap_over_three_seeds_would_not(monkeypatch):
    for module in ("intervals", "score"):
        monkeypatch.setattr(f"recombine.training.{module}.NUM_RESAMPLES", 200)
    monkeypatch.setattr("recombine.training.intervals._widen", lambda num_runs: 1.0)
    generator = np.random.default_rng(3)
    results = [score_seeds(simulate(generator, 3, between=0.2)) for _ in range(150)]
    assert sum(each.low <= 0.5 <= each.high for each in results) < 132


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


def test_two_runs_that_agree_exactly_keep_the_spread_of_their_compositions():
    (sums,) = simulate(np.random.default_rng(7), 1, between=0)
    result = score_seeds([sums, sums])
    assert result.high - result.low > 0.05
    constant = [[1.0] * 5, [2.0] * 5]
    assert score_seeds([constant, constant]).low == pytest.approx(0.5)
    assert torch.isfinite(torch.tensor(score_seeds([constant, constant]).high))


def make_result(value, chance=0.0, ceiling=1.0):
    scores = {"ood": {"r2": {"value": value, "chance": chance, "ceiling": ceiling}}}
    return {"scores": scores, "composition_sums": {"ood": {"r2": [[value] * 5, [1.0] * 5]}}}


def test_the_interval_of_a_score_ends_at_the_ceiling():
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
