"""The SRAVEN solver against the definition, by brute force; and no predictor exceeds the ceiling that it gives."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.compositions import Composition, all_multisets
from recombine.foundation.errors import InputError
from recombine.tasks.sraven import solver
from recombine.tasks.sraven.generator import RULES, log_likelihoods
from recombine.tasks.sraven.solver import Solution
from recombine.tasks.sraven.task import SRaven
from recombine.training.score import score
from sraven_definition import Posterior, find_posterior, obeys, sample


def solve(grids: Tensor, num_values: int = 8, prior: Sequence[Composition] | None = None, permuted: bool = True):
    return solver.solve(grids, num_values, priors=[prior], permuted=permuted)[0]


def check_against_definition(
    grids: Tensor, num_values: int, prior: Sequence[Composition], permuted: bool = True
) -> Solution:
    solution, truths = solve(grids, num_values, prior, permuted), grids[:, -1, -1]
    everywhere, probability = solution.ambiguous_everywhere(truths), solution.probability_of(truths)
    for puzzle, grid in enumerate(grids):
        expected = find_posterior(grid, num_values, frozenset(prior), permuted)
        ordered = sorted(expected, key=lambda answer: (-round(expected[answer], 11), answer))
        mine = solution.instance == puzzle
        assert list(map(tuple, solution.answers[mine].tolist())) == ordered
        probabilities = [expected[answer] for answer in ordered]
        assert solution.answer_probabilities[mine].tolist() == pytest.approx(probabilities, rel=1e-9)
        assert solution.num_answers[puzzle] == len(ordered)
        assert solution.ambiguous[puzzle] == (len(ordered) > 1)
        assert tuple(solution.best[puzzle].tolist()) == (ordered[0] if ordered else (-1,) * grids.shape[-1])
        assert float(solution.probability[puzzle]) == pytest.approx(max(probabilities, default=0))
        truth = tuple(truths[puzzle].tolist())
        assert float(probability[puzzle]) == pytest.approx(expected.get(truth, 0))
        assert everywhere[puzzle] == any(all(a != b for a, b in zip(answer, truth, strict=True)) for answer in ordered)
    return solution


@pytest.mark.parametrize("grid_size", [2, 3])
@pytest.mark.parametrize("rule", range(len(RULES)))
def test_likelihoods_are_those_of_all_possible_draws(rule, grid_size):
    values = range(4)
    if rule == 7:
        sets = [itertools.permutations(chosen) for chosen in itertools.combinations(values, grid_size)]
        draws = [rows for orders in sets for rows in itertools.product(orders, repeat=grid_size)]
    else:
        rows = [row for row in itertools.product(values, repeat=grid_size) if obeys(rule, [list(row)], 4)]
        draws = list(itertools.product(rows, repeat=grid_size))
    visible = Counter((*draw[:-1], draw[-1][:-1]) for draw in draws)
    expected = math.exp(log_likelihoods(num_values=4, grid_size=grid_size)[rule])
    assert [count / len(draws) for count in visible.values()] == pytest.approx([expected] * len(visible))


@pytest.mark.parametrize("permuted", [True, False])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("num_features", "num_values", "grid_size", "num_puzzles"),
    [(1, 4, 3, 20), (2, 4, 3, 40), (2, 8, 3, 40), (3, 4, 3, 12), (3, 8, 3, 12), (3, 4, 2, 12), (2, 5, 4, 12)],
)
def test_posterior_is_that_of_brute_force(num_features, num_values, grid_size, num_puzzles, step, permuted):
    prior = all_multisets(len(RULES), num_features)[::step]
    grids = sample(num_puzzles, num_features, num_values, grid_size, permuted=permuted, multisets=prior)
    solution = check_against_definition(grids, num_values, prior, permuted)
    assert (solution.num_answers > 0).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 3), st.integers(3, 5), st.booleans())
def test_any_puzzle_even_one_that_nothing_fits(data, num_features, num_values, permuted):
    size = 9 * num_features
    values = data.draw(st.lists(st.integers(0, num_values - 1), min_size=size, max_size=size))
    grids = torch.tensor(values).view(1, 3, 3, num_features)
    check_against_definition(grids, num_values, all_multisets(len(RULES), num_features), permuted)


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


@pytest.mark.parametrize("num_features", [3, 5])
def test_puzzle_of_zeros_counts_every_hypothesis(num_features):
    """Three rules fit every chain: constant, addition, subtraction."""
    grids = torch.zeros(3, 3, 3, num_features, dtype=torch.long)
    transitions = solver._tabulate_transitions(all_multisets(len(RULES), num_features))
    hypotheses = solver.search(solver.find_chains(grids, 8, permuted=True), transitions)
    expected = math.factorial(num_features) ** 2 * 3**num_features
    assert hypotheses.num_ways[hypotheses.instance == 1].sum() == expected
    assert solve(grids).probability.tolist() == [1, 1, 1]


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


def test_equal_posteriors_are_ordered_by_answer():
    """Few values make many puzzles whose two best answers are mirror images of each other."""
    solution = solve(sample(2048, 3, 3, seed=5), 3)
    first = (solution.num_answers.cumsum(0) - solution.num_answers)[solution.ambiguous]
    tied = first[(solution.answer_probabilities[first] - solution.answer_probabilities[first + 1]).abs() < 1e-13]
    assert len(tied) > 10
    numbers = (solution.answers * torch.tensor([9, 3, 1])).sum(dim=1)
    assert (numbers[tied] < numbers[tied + 1]).all()


def test_batch_is_solved_as_one_by_one_and_in_chunks(monkeypatch):
    grids = torch.cat([sample(40, 4, 4, seed=6), torch.zeros(5, 3, 3, 4, dtype=torch.long)])
    whole = solve(grids, 4)
    singles = [solve(grid[None], 4) for grid in grids]
    monkeypatch.setattr(solver, "MAX_TABLE", 7 * 8 * 4**3)
    monkeypatch.setattr(solver, "MAX_FRONTIER", 50)
    chunks = solve(grids, 4)
    for name in ("num_answers", "best", "probability", "answers", "answer_probabilities"):
        torch.testing.assert_close(getattr(chunks, name), getattr(whole, name))
        torch.testing.assert_close(torch.cat([getattr(single, name) for single in singles]), getattr(whole, name))
    assert torch.equal(chunks.instance, whole.instance)
    assert solve(grids[:0], 4).best.shape == (0, 4)
    spoiled = grids.clone()
    spoiled[:, -1, -1] = -99  # the last panel is ignored
    assert torch.equal(solve(spoiled, 4).best, whole.best)


def test_rows_are_grouped_also_when_their_numbers_are_huge():
    table = torch.tensor([[2, 1 << 61, 5], [0, 7, 1 << 62], [2, 1 << 61, 5], [2, 3, 5], [0, 7, 9]])
    group, rows = solver.group_rows(*table.unbind(dim=1))
    expected, expected_group = table.unique(dim=0, return_inverse=True)
    assert torch.equal(table[rows], expected)
    assert torch.equal(group, expected_group)


@pytest.mark.parametrize(
    ("shape", "value", "message"),
    [
        ((2, 2, 3, 2), 0, r"the shape of grids is \(2, 2, 3, 2\): expected .* a square"),
        ((2, 3, 3, 2), 8, "grids hold other values: expected 0 to 7"),
        ((1, 3, 3, 32), 0, "32 features .* expected at most 31"),
    ],
)
def test_grids_that_would_be_solved_wrongly(shape, value, message):
    with pytest.raises(InputError, match=message):
        solve(torch.full(shape, value))


def test_a_batch_of_another_split_is_refused():
    batch = SRaven(num_values=16).sample("ood", 0, batch_size=50)
    with pytest.raises(InputError, match="puzzles fit no rules of the split: expected a batch of the same split"):
        SRaven(num_values=16).best_predictions(batch, split="test", metric="accuracy")


# ---- the ceiling


def best_panel(posterior: Posterior) -> tuple[int, ...]:
    return min(answer for answer, share in posterior.items() if share > max(posterior.values()) - 1e-9)


def share_of_values(posterior: Posterior) -> list[dict[int, float]]:
    shares: list[dict[int, float]] = [defaultdict(float) for _ in range(4)]
    for answer, share in posterior.items():
        for position, value in enumerate(answer):
            shares[position][value] += share
    return shares


def best_values(posterior: Posterior) -> tuple[int, ...]:
    return tuple(
        min(value for value, share in shares.items() if share > max(shares.values()) - 1e-9)
        for shares in share_of_values(posterior)
    )


CHOICES: dict[str, Callable[[Posterior], tuple[int, ...]]] = {"accuracy": best_panel, "feature_accuracy": best_values}


@pytest.mark.parametrize("num_values", [8, 4])
@pytest.mark.parametrize(("split", "knows_split"), [("test", True), ("ood", True), ("test", False)])
def test_the_bayes_solver_reaches_the_ceiling_or_the_agnostic_optimum(num_values, split, knows_split):
    """With the multisets of the split as its prior, or with all of them."""
    task = SRaven(num_values=num_values)
    prior = frozenset(task.split.compositions(split) if knows_split else all_multisets(8, 4))
    posteriors: dict[tuple[int, ...], Posterior] = {}

    def bayes(inputs: Tensor, choose: Callable[[Posterior], tuple[int, ...]]) -> Tensor:
        answers = []
        for grid in inputs.argmax(dim=-1).view(-1, 3, 3, 4):
            key = tuple(grid.flatten().tolist())
            posteriors[key] = posteriors.get(key) or find_posterior(grid, num_values, prior)
            answers.append(choose(posteriors[key]))
        return one_hot(torch.tensor(answers), num_values).float()

    for metric, choose in CHOICES.items():
        found = score(partial(bayes, choose=choose), task, splits=(split,), num_instances=120)[split][metric]
        assert found.value == (found.ceiling if knows_split else found.agnostic)


@pytest.mark.parametrize(("num_values", "ceiling", "agnostic"), [(8, 0.9336, 0.929), (4, 0.7805, 0.7711)])
def test_knowing_the_split_helps(num_values, ceiling, agnostic):
    """The solver that knows what `test` holds is right more often than the one that does not, in expectation."""
    task = SRaven(num_values=num_values)
    grids = task.sample("test", 0, batch_size=4_000).info["grids"]
    own, everything = solver.solve(grids, num_values, priors=[task.split.train, None])
    expected = own.probability_of(everything.best)  # of the agnostic answers, given that the puzzle is of `test`
    assert (expected <= own.probability + 1e-12).all()
    assert own.probability.mean().item() == pytest.approx(ceiling, abs=0.012)
    assert expected.mean().item() == pytest.approx(agnostic, abs=0.012)
    assert 0.002 < (own.probability - expected).mean() < 0.02
    for together, prior in ((own, task.split.train), (everything, None)):
        alone = solve(grids[:300], num_values, prior)
        assert torch.equal(together.best[:300], alone.best)
        torch.testing.assert_close(together.probability[:300], alone.probability, rtol=1e-12, atol=0)
