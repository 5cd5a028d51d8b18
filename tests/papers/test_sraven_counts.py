"""Numbers of SRAVEN tasks and puzzles, against counting one by one."""

import itertools

import pytest

from recombine_papers.hypernetwork.counts import (
    TABLE_A2,
    count_multisets,
    count_puzzles,
    count_tasks,
    count_tasks_as_printed,
    count_tasks_up_to_renaming,
    estimate_ambiguity,
)


@pytest.mark.parametrize(("num_features", "num_rules"), [(1, 8), (2, 4), (3, 2)])
def test_tasks_one_by_one(num_features, num_rules):
    """A task is a set of chains; which latent feature is called the first does not matter."""
    orders = list(itertools.permutations(range(num_features)))
    tasks = {
        tuple(sorted(zip(rules, *columns, strict=True)))  # for each latent feature: its rule, its positions
        for rules in itertools.product(range(num_rules), repeat=num_features)
        for columns in itertools.product(orders, repeat=3)
    }
    assert len(tasks) == count_tasks(num_features, num_rules)
    orbits = {
        min(tuple(sorted((rule, *(new[place] for place in places)) for rule, *places in task)) for new in orders)
        for task in tasks
    }
    assert len(orbits) == count_tasks_up_to_renaming(num_features, num_rules)


def test_numbers_of_the_paper():
    assert count_multisets(4) == 330
    assert count_tasks_as_printed(4) == 330 * (24**2 - 4) == 188_760
    assert count_tasks(4) == 8**4 * 24**2 == 2_359_296
    assert count_tasks_up_to_renaming(4) == 101_088
    assert count_tasks_as_printed(1) == 0 < count_tasks(1) == 8
    assert count_puzzles(1, 8) == 5 * 512 + 2 * 262_144 + 56 * 216


def test_ambiguity_agrees_with_what_was_measured():
    """A quarter of the puzzles are ambiguous by the wording of the paper, a hundredth of them by the count of table A2."""
    found = estimate_ambiguity(8, num_instances=4_096)
    error = (0.242 * 0.758 / 4_096) ** 0.5
    assert found["ambiguous"] == pytest.approx(0.242, abs=4 * error)
    assert abs(found["ambiguous_everywhere"] - TABLE_A2[8].value) < 8 * TABLE_A2[8].standard_error
    assert found["agnostic"] == pytest.approx(0.929, abs=0.01)
