"""The solver against the definition: brute force over all permutations of all columns and all rule vectors."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.compositions import all_multisets
from recombine.tasks.sraven import solver as sraven_search
from recombine.tasks.sraven import solver as sraven_solver
from recombine.tasks.sraven.generator import RULES, log_likelihoods
from recombine.tasks.sraven.solver import Solution, solve
from sraven_samples import STEP, sample

# ---- A naive generator, and the definition ---------------------------------------------------------------------------


def obeys(rule: int, rows: list[list[int]], num_values: int) -> bool:
    """Whether a complete feature could have been made by a rule."""
    if rule in STEP:
        return all((b - a - STEP[rule]) % num_values == 0 for row in rows for a, b in itertools.pairwise(row))
    if rule == 7:
        return all(len(set(row)) == len(row) and set(row) == set(rows[0]) for row in rows)
    sign = 1 if rule == 5 else -1
    return all((row[0] + sign * sum(row[1:-1]) - row[-1]) % num_values == 0 for row in rows)


def enumerate_posterior(grid, num_values, prior, permuted=True) -> dict[tuple[int, ...], float]:
    """Posterior over answers, by going through permutations of every column, rule vectors and hidden values."""
    grid_size, _, num_features = grid.shape
    likelihoods = np.exp(log_likelihoods(num_values=num_values, grid_size=grid_size))

    def explain(chain):
        rows = [[int(grid[row, column, chain[column]]) for column in range(grid_size)] for row in range(grid_size)]
        completed = ((value, [*rows[:-1], [*rows[-1][:-1], value]]) for value in range(num_values))
        return [(rule, value) for value, full in completed for rule in range(8) if obeys(rule, full, num_values)]

    chains = itertools.product(range(num_features), repeat=grid_size)
    explanations = {chain: explain(chain) for chain in chains}
    orders = list(itertools.permutations(range(num_features))) if permuted else [tuple(range(num_features))]
    weights: dict[tuple[int, ...], float] = defaultdict(float)
    for permutations in itertools.product(orders, repeat=grid_size if permuted else 1):
        features = list(zip(*(permutations if permuted else permutations * grid_size), strict=True))
        for hypothesis in itertools.product(*(explanations[chain] for chain in features)):
            rules, values = zip(*hypothesis, strict=True)
            arrangements = math.factorial(num_features) / math.prod(map(math.factorial, Counter(rules).values()))
            weight = prior.get(tuple(sorted(rules)), 0) / arrangements * math.prod(likelihoods[list(rules)])
            if weight:
                placed = sorted(zip((chain[-1] for chain in features), values, strict=True))
                weights[tuple(value for _, value in placed)] += weight
    total = sum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}


def check_against_enumeration(grids: torch.Tensor, num_values: int, prior: dict, permuted: bool = True) -> Solution:
    restriction = {"multisets": list(prior), "weights": list(prior.values())}
    solution = solve(grids, num_values, permuted=permuted, **restriction)
    everywhere = solution.ambiguous_everywhere(grids[:, -1, -1])
    for puzzle, grid in enumerate(grids):
        expected = enumerate_posterior(grid, num_values, prior, permuted)
        ordered = sorted(expected, key=lambda answer: (-round(expected[answer], 11), answer))
        mine = solution.instance == puzzle
        assert list(map(tuple, solution.answers[mine].tolist())) == ordered
        probabilities = [expected[answer] for answer in ordered]
        assert solution.answer_probabilities[mine].tolist() == pytest.approx(probabilities, rel=1e-9)
        assert solution.num_answers[puzzle] == len(ordered)
        assert solution.ambiguous[puzzle] == (len(ordered) > 1)
        assert tuple(solution.best[puzzle].tolist()) == (ordered[0] if ordered else (-1,) * grids.shape[-1])
        assert float(solution.probability[puzzle]) == pytest.approx(max(probabilities, default=0))
        truth = tuple(grid[-1, -1].tolist())
        assert float(solution.probability_of(grids[:, -1, -1])[puzzle]) == pytest.approx(expected.get(truth, 0))
        differs = (all(a != b for a, b in zip(answer, truth, strict=True)) for answer in ordered)
        assert everywhere[puzzle] == any(differs)
    return solution


def uniform(num_features: int) -> dict:
    return dict.fromkeys(all_multisets(len(RULES), num_features), 1.0)


def skewed(num_features: int) -> dict:
    """Two thirds of the multisets, with unequal weights."""
    kept = [multiset for index, multiset in enumerate(all_multisets(len(RULES), num_features)) if index % 3]
    return {multiset: 1.0 + index % 5 for index, multiset in enumerate(kept)}


# ---- Exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid_size", [2, 3])
@pytest.mark.parametrize("rule", range(len(RULES)))
def test_likelihoods_are_those_of_all_possible_draws(rule, grid_size):
    num_values = 4
    if rule == 7:
        sets = itertools.combinations(range(num_values), grid_size)
        draws = [
            rows for values in sets for rows in itertools.product(itertools.permutations(values), repeat=grid_size)
        ]
    else:
        rows = [
            row
            for row in itertools.product(range(num_values), repeat=grid_size)
            if obeys(rule, [list(row)], num_values)
        ]
        draws = list(itertools.product(rows, repeat=grid_size))
    visible = Counter((*draw[:-1], draw[-1][:-1]) for draw in draws)
    expected = math.exp(log_likelihoods(num_values=num_values, grid_size=grid_size)[rule])
    assert [count / len(draws) for count in visible.values()] == pytest.approx([expected] * len(visible))


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("make_prior", [uniform, skewed])
@pytest.mark.parametrize(
    ("num_features", "num_values", "grid_size", "num_puzzles"),
    [(1, 4, 3, 20), (2, 4, 3, 40), (2, 8, 3, 40), (3, 4, 3, 12), (3, 8, 3, 12), (3, 4, 2, 12), (2, 5, 4, 12)],
)
def test_posterior_is_that_of_brute_force(num_features, num_values, grid_size, num_puzzles, make_prior, permuted):
    prior = make_prior(num_features)
    grids = sample(
        num_puzzles,
        num_features,
        num_values,
        grid_size,
        permuted=permuted,
        multisets=list(prior),
        weights=list(prior.values()),
    )
    solution = check_against_enumeration(grids, num_values, prior, permuted)
    assert (solution.num_answers > 0).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 3), st.integers(3, 5), st.booleans())
def test_any_puzzle_even_one_that_nothing_fits(data, num_features, num_values, permuted):
    size = 9 * num_features
    values = data.draw(st.lists(st.integers(0, num_values - 1), min_size=size, max_size=size))
    grids = torch.tensor(values).view(1, 3, 3, num_features)
    check_against_enumeration(grids, num_values, uniform(num_features), permuted)


@pytest.mark.parametrize(
    ("num_features", "num_values", "grid_size", "num_puzzles"),
    [(2, 8, 3, 512), (4, 8, 3, 1024), (4, 3, 3, 128), (5, 8, 3, 256), (4, 100, 3, 128), (3, 8, 5, 64), (8, 8, 3, 32)],
)
def test_truth_is_consistent_and_posterior_sums_to_one(num_features, num_values, grid_size, num_puzzles):
    grids = sample(num_puzzles, num_features, num_values, grid_size, seed=1)
    solution = solve(grids, num_values)
    assert (solution.probability_of(grids[:, -1, -1]) > 0).all()
    total = torch.zeros(num_puzzles, dtype=torch.float64).index_add(0, solution.instance, solution.answer_probabilities)
    torch.testing.assert_close(total, torch.ones_like(total))
    torch.testing.assert_close(solution.probability_of(solution.best), solution.probability)


def test_shuffling_features_within_columns_shuffles_the_answers():
    grids = sample(128, 4, 5, seed=2)
    orders = [[2, 0, 3, 1], [1, 0, 2, 3], [3, 2, 0, 1]]
    shuffled = torch.stack([grids[:, :, column, order] for column, order in enumerate(orders)], dim=2)
    solution, other = solve(grids, 5), solve(shuffled, 5)
    assert torch.equal(solution.num_answers, other.num_answers)
    torch.testing.assert_close(solution.probability, other.probability)
    torch.testing.assert_close(other.probability_of(solution.best[:, orders[-1]]), solution.probability)


@pytest.mark.parametrize("num_features", [3, 5])
def test_puzzle_of_zeros_counts_every_hypothesis(num_features):
    grids = torch.zeros(3, 3, 3, num_features, dtype=torch.long)
    multisets = all_multisets(len(RULES), num_features)
    transitions = sraven_solver._tabulate_transitions(multisets)
    hypotheses = sraven_search.search(grids, 8, transitions, permuted=True)
    # Three rules fit every chain: constant, addition, subtraction.
    expected = math.factorial(num_features) ** 2 * 3**num_features
    assert hypotheses.count[hypotheses.instance == 1].sum() == expected
    solution = solve(grids)
    assert solution.num_answers.tolist() == [1, 1, 1]
    assert solution.best.abs().max() == 0
    assert solution.probability.tolist() == [1, 1, 1]


# ---- Known numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_features", "ambiguity", "everywhere", "ceiling"),
    [(2, 0.093, 0.0214, 0.980), (3, 0.162, 0.0033, 0.958), (4, 0.246, 0.0022, 0.929)],
)
def test_best_answer_is_as_often_right_as_promised(num_features, ambiguity, everywhere, ceiling):
    grids = sample(4096, num_features, seed=3)
    truth = grids[:, -1, -1]
    solution = solve(grids)
    promised = solution.probability
    realised = (solution.best == truth).all(dim=1).double().mean()
    standard_error = math.sqrt(float((promised * (1 - promised)).sum())) / len(grids)
    assert abs(float(realised - promised.mean())) < 2 * standard_error
    assert float(promised.mean()) == pytest.approx(ceiling, abs=0.01)
    assert float(solution.ambiguous.double().mean()) == pytest.approx(ambiguity, abs=0.02)
    assert float(solution.ambiguous_everywhere(truth).double().mean()) == pytest.approx(everywhere, abs=0.004)


def test_knowing_the_multisets_helps_and_excluding_the_truth_hurts():
    train = all_multisets(len(RULES), 4)[::40]
    grids = sample(1024, 4, multisets=train, seed=4)
    informed, uninformed = solve(grids, multisets=train), solve(grids)
    assert informed.probability.mean() > uninformed.probability.mean()
    assert (informed.num_answers <= uninformed.num_answers).all()
    wrong = solve(grids[:1], multisets=[(7, 7, 7, 7)])
    assert (wrong.num_answers.item(), wrong.probability.item(), wrong.best.tolist()) == (0, 0, [[-1] * 4])


def test_equal_posteriors_are_ordered_by_answer():
    # Few values make many puzzles whose two best answers are mirror images of each other.
    solution = solve(sample(2048, 3, 3, seed=5), 3)
    first = (solution.num_answers.cumsum(0) - solution.num_answers)[solution.ambiguous]
    tied = first[(solution.answer_probabilities[first] - solution.answer_probabilities[first + 1]).abs() < 1e-13]
    assert len(tied) > 10
    numbers = (solution.answers * torch.tensor([9, 3, 1])).sum(dim=1)
    assert (numbers[tied] < numbers[tied + 1]).all()


# ---- Batches and input -----------------------------------------------------------------------------------------------
