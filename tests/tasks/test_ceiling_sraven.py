"""No predictor exceeds the ceiling of SRAVEN: an explicit Bayes solver, by brute force over pairings and rules."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.compositions import Composition, all_multisets
from recombine.foundation.errors import InputError
from recombine.tasks.sraven.solver import solve, solve_under
from recombine.tasks.sraven.task import SRaven
from recombine.training.score import score

Grid = list[list[list[int]]]  # row, column, position; the last panel is not looked at
Posterior = dict[tuple[int, ...], float]

STEPS = {0: 0, 1: 1, 2: 2, 3: -1, 4: -2}
ORDERS = tuple(itertools.permutations(range(4)))
NUM_PUZZLES = 120


def complete(rule: int, rows: list[list[int]], num_values: int) -> int | None:
    """The hidden value of a feature under a rule, or None if the visible ones disobey it. The last row has two values."""
    if rule in STEPS:
        obeys = all((b - a - STEPS[rule]) % num_values == 0 for row in rows for a, b in itertools.pairwise(row))
        return (rows[2][1] + STEPS[rule]) % num_values if obeys else None
    if rule in (5, 6):
        sign = 1 if rule == 5 else -1
        obeys = all((row[0] + sign * row[1] - row[2]) % num_values == 0 for row in rows[:2])
        return (rows[2][0] + sign * rows[2][1]) % num_values if obeys else None
    values = set(rows[0])
    obeys = len(values) == 3 and set(rows[1]) == values and len(set(rows[2])) == 2 and set(rows[2]) <= values
    return (values - set(rows[2])).pop() if obeys else None


@cache
def weigh(multiset: Composition, num_values: int) -> float:
    """Probability of an arrangement of the rules and of its visible values, given the multiset."""
    arrangements = math.factorial(4) / math.prod(math.factorial(count) for count in Counter(multiset).values())
    three = 1 / (math.comb(num_values, 3) * 6**3)
    likelihood = [three if rule == 7 else num_values ** (-6 if rule in (5, 6) else -3) for rule in multiset]
    return math.prod(likelihood) / arrangements


def find_posterior(grid: Grid, prior: frozenset[Composition], num_values: int) -> Posterior:
    """The probability of every answer: all ways to pair positions of the columns, all rules of each chain of positions."""
    chains: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for places in itertools.product(range(4), repeat=3):
        rows = [[grid[row][column][places[column]] for column in range(3 if row < 2 else 2)] for row in range(3)]
        hidden = [(rule, complete(rule, rows, num_values)) for rule in range(8)]
        chains[places] = [(rule, value) for rule, value in hidden if value is not None]
    weights: dict[tuple[int, ...], float] = defaultdict(float)
    for second, third in itertools.product(ORDERS, repeat=2):
        options = [chains[first, second[first], third[first]] for first in range(4)]
        if not all(options):
            continue
        for chosen in itertools.product(*options):
            multiset = tuple(sorted(rule for rule, _ in chosen))
            if multiset in prior:
                answer = dict(zip(third, (value for _, value in chosen), strict=True))
                weights[tuple(answer[position] for position in range(4))] += weigh(multiset, num_values)
    total = sum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}


def best_panel(posterior: Posterior) -> tuple[int, ...]:
    return min(answer for answer, share in posterior.items() if share > max(posterior.values()) - 1e-9)


def best_values(posterior: Posterior) -> tuple[int, ...]:
    values = []
    for position in range(4):
        shares: dict[int, float] = defaultdict(float)
        for answer, share in posterior.items():
            shares[answer[position]] += share
        values.append(min(value for value, share in shares.items() if share > max(shares.values()) - 1e-9))
    return tuple(values)


def read_grids(inputs: Tensor) -> list[Grid]:
    return inputs.argmax(dim=-1).view(-1, 3, 3, 4).tolist()


def bayes(
    task: SRaven, prior: Sequence[Composition], choose: Callable[[Posterior], tuple[int, ...]]
) -> Callable[[Tensor], Tensor]:
    def predict(inputs: Tensor) -> Tensor:
        answers = [choose(find_posterior(grid, frozenset(prior), task.num_values)) for grid in read_grids(inputs)]
        return one_hot(torch.tensor(answers), task.num_values).float()

    return predict


@pytest.mark.parametrize("num_values", [8, 4])
@pytest.mark.parametrize("split", ["test", "ood"])
def test_the_bayes_solver_of_the_split_reaches_the_ceiling(num_values, split):
    task = SRaven(num_values=num_values)
    for metric, choose in (("accuracy", best_panel), ("feature_accuracy", best_values)):
        predict = bayes(task, task.split.compositions(split), choose)
        found = score(predict, task, splits=(split,), num_instances=NUM_PUZZLES)[split][metric]
        assert found.value == found.ceiling


@pytest.mark.parametrize("num_values", [8, 4])
def test_the_bayes_solver_of_all_multisets_reaches_the_agnostic_optimum(num_values):
    task = SRaven(num_values=num_values)
    for metric, choose in (("accuracy", best_panel), ("feature_accuracy", best_values)):
        predict = bayes(task, all_multisets(8, 4), choose)
        found = score(predict, task, splits=("test",), num_instances=NUM_PUZZLES)["test"][metric]
        assert found.value == found.agnostic


def test_no_other_answer_is_more_probable():
    """Puzzle by puzzle, without sampling error: the panel, and each value by itself."""
    task = SRaven(num_values=4)
    batch = task.sample("test", 0, batch_size=60)
    panels, values = (
        task.best_predictions(batch, split="test", metric=metric).argmax(dim=-1).tolist()
        for metric in ("accuracy", "feature_accuracy")
    )
    posteriors = [find_posterior(grid, frozenset(task.split.train), 4) for grid in read_grids(batch.inputs)]
    for panel, posterior in zip(panels, posteriors, strict=True):
        assert posterior[tuple(panel)] == pytest.approx(max(posterior.values()))
    for chosen, posterior in zip(values, posteriors, strict=True):
        for position, expected in enumerate(best_values(posterior)):
            shares = [
                sum(share for answer, share in posterior.items() if answer[position] == value)
                for value in (chosen[position], expected)
            ]
            assert shares[0] == pytest.approx(shares[1])
    assert panels != values  # the two metrics differ in what is best


@pytest.mark.parametrize(("num_values", "ceiling", "agnostic"), [(8, 0.9336, 0.929), (4, 0.7805, 0.7711)])
def test_knowing_the_split_helps(num_values, ceiling, agnostic):
    """The solver that knows what `test` holds is right more often than the one that does not, in expectation."""
    task = SRaven(num_values=num_values)
    grids = task.sample("test", 0, batch_size=4_000).info["grids"]
    own, everything = solve_under(grids, num_values, priors=[task.split.train, None])
    expected = own.probability_of(everything.best)  # of the agnostic answers, given that the puzzle is of `test`
    assert (expected <= own.probability + 1e-12).all()
    assert own.probability.mean().item() == pytest.approx(ceiling, abs=0.012)
    assert expected.mean().item() == pytest.approx(agnostic, abs=0.012)
    assert 0.002 < (own.probability - expected).mean() < 0.02


def test_one_search_for_several_priors_agrees_with_one_each():
    task = SRaven(num_values=4)
    grids = task.sample("test", 0, batch_size=300).info["grids"]
    together = solve_under(grids, 4, priors=[task.split.train, None, task.split.ood])
    for solution, multisets in zip(together, (task.split.train, None, task.split.ood), strict=True):
        alone = solve(grids, 4, multisets=multisets)
        assert torch.equal(solution.best, alone.best)
        assert torch.equal(solution.answers, alone.answers)
        torch.testing.assert_close(solution.answer_probabilities, alone.answer_probabilities, rtol=1e-12, atol=0)


def test_other_predictors_do_not_exceed_the_ceiling():
    task = SRaven(num_features=2, num_values=4)

    def solver(prior: Sequence[Composition], swap: float) -> Callable[[Tensor], Tensor]:
        def predict(inputs: Tensor) -> Tensor:
            grids = inputs.argmax(dim=-1).view(-1, 3, 3, 2)
            best = solve(grids, 4, multisets=prior).best.clamp_min(0)
            wrong = torch.rand(len(best), generator=torch.Generator().manual_seed(0)) < swap
            return one_hot(torch.where(wrong[:, None], best.flip(1), best), 4).float()

        return predict

    for prior, swap in ((task.split.train, 0.1), (task.split.ood, 0.0), (task.split.train[:12], 0.0)):
        scores = score(solver(prior, swap), task, splits=("test",), num_instances=2_000)
        assert all(found.value < found.ceiling for found in scores["test"].values())


def test_bad_requests():
    task = SRaven(num_values=16)
    batch = task.sample("ood", 0, batch_size=50)
    with pytest.raises(InputError, match="unknown metric 'r2': expected one of accuracy, feature_accuracy"):
        task.best_predictions(batch, split="ood", metric="r2")
    with pytest.raises(InputError, match="puzzles fit no rules of the split: expected a batch of the same split"):
        task.best_predictions(batch, split="test", metric="accuracy")
