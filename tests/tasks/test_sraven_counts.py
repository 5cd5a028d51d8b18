"""Numbers of SRAVEN tasks and puzzles, against counting one by one."""

import itertools
import math

import pytest

from recombine.compositions import all_multisets
from recombine.foundation.errors import InputError
from recombine.tasks.sraven.counts import (
    count_distinct_rules,
    count_fillings,
    count_multisets,
    count_puzzles,
    count_tasks,
    count_tasks_as_printed,
    count_tasks_up_to_renaming,
)
from recombine.tasks.sraven.generator import log_likelihoods


def list_tasks(num_features: int, num_columns: int, num_rules: int):
    """Every choice of rules of latent features and of the position of each feature in each column."""
    orders = list(itertools.permutations(range(num_features)))
    for rules in itertools.product(range(num_rules), repeat=num_features):
        for columns in itertools.product(orders, repeat=num_columns):
            yield list(zip(rules, *columns, strict=True))  # for each latent feature: its rule, its positions


@pytest.mark.parametrize(("num_features", "grid_size", "num_rules"), [(1, 3, 8), (2, 3, 4), (2, 4, 3), (3, 3, 2)])
def test_tasks_one_by_one(num_features, grid_size, num_rules):
    """A task is a set of chains; which latent feature is called the first does not matter."""
    tasks = {tuple(sorted(chains)) for chains in list_tasks(num_features, grid_size, num_rules)}
    assert len(tasks) == count_tasks(num_features, grid_size, num_rules)
    renamings = list(itertools.permutations(range(num_features)))
    orbits = {
        min(
            tuple(sorted((rule, *(new[position] for position in positions)) for rule, *positions in task))
            for new in renamings
        )
        for task in tasks
    }
    assert len(orbits) == count_tasks_up_to_renaming(num_features, grid_size, num_rules)


def test_numbers_of_the_paper():
    assert count_multisets(4) == len(all_multisets(8, 4)) == 330
    assert count_tasks_as_printed(4) == 330 * (24**2 - 4) == 188_760
    assert count_tasks(4) == 8**4 * 24**2 == 2_359_296
    assert count_tasks_up_to_renaming(4) == 101_088


def test_the_printed_formula_fails_for_one_feature():
    assert count_tasks_as_printed(1) == 0
    assert count_tasks(1) == count_tasks_up_to_renaming(1) == 8


@pytest.mark.parametrize(("num_values", "grid_size"), [(3, 3), (8, 3), (16, 3), (6, 4), (5, 2)])
def test_fillings_are_as_many_as_their_likelihood_says(num_values, grid_size):
    likelihoods = log_likelihoods(num_values=num_values, grid_size=grid_size)
    for count, likelihood in zip(count_fillings(num_values, grid_size), likelihoods, strict=True):
        assert math.log(count) == pytest.approx(-likelihood)


def test_puzzles():
    assert count_puzzles(1, 8) == sum(count_fillings(8)) == 5 * 512 + 2 * 262_144 + 56 * 216
    assert count_puzzles(2, 3, 2) == (5 * 9 + 2 * 9 + 3 * 4) ** 2 * 2
    assert count_puzzles(4, 8) > 1e25  # orders of magnitude above the 40 million instances of training


@pytest.mark.parametrize(
    ("num_values", "grid_size", "expected"), [(3, 3, 6), (4, 3, 7), (5, 3, 8), (8, 3, 8), (8, 2, 6)]
)
def test_distinct_rules(num_values, grid_size, expected):
    """+2 is -2 modulo 4, +1 is -2 modulo 3; in a grid of 2, addition and subtraction repeat the first value."""
    assert count_distinct_rules(num_values, grid_size) == expected


def test_bad_input():
    with pytest.raises(InputError, match="num_features is 0"):
        count_tasks(0)
    with pytest.raises(InputError, match="num_values is 2"):
        count_puzzles(4, 2)
