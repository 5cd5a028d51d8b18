"""Intervals over seeds: the degenerate case, pairing, and coverage on simulated runs."""

import numpy as np
import pytest
import torch

from recombine.errors import InputError
from recombine.evaluate import CompositionSums, compare
from recombine.seeds import compare_seeds, score_seeds

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
    monkeypatch.setattr("recombine.seeds.NUM_RESAMPLES", 200)
    generator = np.random.default_rng(num_runs)
    results = [score_seeds(simulate(generator, num_runs, between=between)) for _ in range(150)]
    assert sum(each.low <= 0.5 <= each.high for each in results) >= 138


def test_a_plain_bootstrap_over_three_seeds_would_not(monkeypatch):
    monkeypatch.setattr("recombine.seeds.NUM_RESAMPLES", 200)
    monkeypatch.setattr("recombine.seeds._widen", lambda num_runs: 1.0)
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


def test_runs_of_different_processors_are_paired_in_spite_of_rounding():
    sums, rounded = [[1.0, 2.0], [4.0, 8.0]], [[2.0, 2.0], [4.0 * (1 + 1e-7), 8.0]]
    assert compare_seeds([rounded], [sums]).value > 0
    with pytest.raises(InputError, match="not of the same instances"):
        compare_seeds([[[2.0, 2.0], [4.001, 8.0]]], [sums])
