"""How many SRAVEN tasks and puzzles there are (arXiv 2406.05816, appendix B.1 and figure A9).

With R rules, M features, G columns and K values. The paper prints

    tasks = C(R+M-1, M) ((M!)^(G-1) - M),    multisets of rules times "unique permutations".

We can derive neither factor. With one feature there are no permutations to choose, so there are R tasks, but the formula
gives 0. And a multiset does not say which feature follows which rule, which is part of a task if permutations are. The
puzzles are determined by the rule of each position of the first column and, for each later column, by which position
continues which:

    tasks = R^M (M!)^(G-1)    (2,359,296 at R=8, M=4, G=3, compared with 188,760 in the paper).

If renaming positions in all columns alike does not count as another task, the number is that of the orbits of this
renaming, by Burnside's lemma (101,088). With few values some rules coincide, for example +2 and -2 at K=4; then R is that
of `count_distinct_rules`.

The paper does not say how figure A9B counts puzzles. Here a puzzle is a task with values for all its panels, so a grid
of values counts once for each task that explains it; this factorises, and bounds the number of different grids:

    puzzles = (sum over rules of the ways to fill a feature)^M (M!)^(G-1).

How often a SRAVEN puzzle has more than one answer, and the accuracy that is still possible (arXiv 2406.05816, table A2).

Puzzles are drawn by the generator, with every multiset of rules equally likely, and solved exactly. Table A2 counts a
puzzle as ambiguous if some answer that fits differs from the true one in *every* feature; by the text of appendix B.2 it is
ambiguous if an answer differs at all. Both are estimated, and so is the agnostic optimum, the accuracy of the best solver
that considers every multiset equally likely: once as the mean posterior of its answers, once as the share that are right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from recombine.compositions import all_multisets
from recombine.foundation.errors import InputError, check_positive
from recombine.foundation.tables import Cell, Column, Table
from recombine.random import Stream
from recombine.tasks.sraven.generator import (
    DISTRIBUTE,
    RULES,
    STEPS,
    check_sizes,
    check_table,
    draw_puzzles,
    tabulate_rows,
)
from recombine.tasks.sraven.solver import solve

NUM_RULES = len(RULES)


def count_multisets(num_features: int, num_rules: int = NUM_RULES) -> int:
    """The number of compositions, which are split into trained and held-out ones."""
    check_positive(num_features=num_features, num_rules=num_rules)
    return math.comb(num_rules + num_features - 1, num_features)


def count_tasks_as_printed(num_features: int, grid_size: int = 3, num_rules: int = NUM_RULES) -> int:
    """The paper's formula."""
    return count_multisets(num_features, num_rules) * (_count_pairings(num_features, grid_size) - num_features)


def count_tasks(num_features: int, grid_size: int = 3, num_rules: int = NUM_RULES) -> int:
    """Number of choices of a rule for each position of the first column and of its continuation in each other column."""
    check_positive(num_features=num_features, num_rules=num_rules)
    return num_rules**num_features * _count_pairings(num_features, grid_size)


def count_tasks_up_to_renaming(num_features: int, grid_size: int = 3, num_rules: int = NUM_RULES) -> int:
    """Number of tasks if exchanging positions in all columns alike does not count as another task.

    A renaming leaves a choice unchanged if the rules are constant on its cycles and the pairings commute with it.
    """
    check_positive(num_features=num_features, num_rules=num_rules)
    total = 0
    for cycles in _partition(num_features, num_features):
        num_commuting = math.prod(
            length**repeats * math.factorial(repeats) for length, repeats in Counter(cycles).items()
        )
        num_renamings = math.factorial(num_features) // num_commuting
        total += num_renamings * num_rules ** len(cycles) * num_commuting ** (grid_size - 1)
    return total // math.factorial(num_features)


def count_distinct_rules(num_values: int, grid_size: int = 3) -> int:
    """Number of rules with different rows: all 8 from K=5 on in a grid of 3, but 7 at K=4 and 6 at K=3."""
    check_sizes(num_values=num_values, grid_size=grid_size)
    table = tabulate_rows(num_values, grid_size, torch.device("cpu"))[:, : DISTRIBUTE * num_values ** (grid_size - 1)]
    rows_by_rule = table.T.unflatten(0, (DISTRIBUTE, -1)).tolist()
    return len({frozenset(map(tuple, rows)) for rows in rows_by_rule}) + 1


def count_fillings(num_values: int, grid_size: int = 3) -> tuple[int, ...]:
    """For each rule, the number of ways to fill all rows of a feature; all are equally likely."""
    check_sizes(num_values=num_values, grid_size=grid_size)
    one_free, most_free = num_values**grid_size, num_values ** (grid_size * (grid_size - 1))
    distribute = math.comb(num_values, grid_size) * math.factorial(grid_size) ** grid_size
    return (*[one_free] * len(STEPS), most_free, most_free, distribute)


def count_puzzles(num_features: int, num_values: int, grid_size: int = 3) -> int:
    """Number of tasks with values for all panels."""
    check_positive(num_features=num_features)
    return sum(count_fillings(num_values, grid_size)) ** num_features * _count_pairings(num_features, grid_size)


def _count_pairings(num_features: int, grid_size: int) -> int:
    return math.factorial(num_features) ** (grid_size - 1)


def _partition(total: int, largest: int) -> list[tuple[int, ...]]:
    """Every way to write a number as a sum of non-increasing numbers up to the largest."""
    if total == 0:
        return [()]
    return [(part, *rest) for part in range(min(total, largest), 0, -1) for rest in _partition(total - part, part)]


class Estimate(NamedTuple):
    """A mean over puzzles and its standard error."""

    value: float
    standard_error: float


TABLE_A2 = {  # (features, values): fraction ambiguous as printed, over 4,096 puzzles
    (4, 4): Estimate(0.0642, 0.0038),
    (4, 8): Estimate(0.0032, 0.0009),
    (4, 16): Estimate(0.0005, 0.0003),
}


@dataclass(frozen=True, kw_only=True)
class Ambiguity:
    """Estimates for one setting."""

    num_features: int
    num_values: int
    num_instances: int
    ambiguous: Estimate  # another answer fits: the paper's wording
    ambiguous_everywhere: Estimate  # another answer fits that differs in every feature: the paper's count
    agnostic: Estimate  # expected accuracy of the most probable answer
    accuracy: Estimate  # how often the most probable answer was the true one


def estimate_ambiguity(
    *,
    num_values: int = 8,
    num_features: int = 4,
    num_instances: int = 4_096,
    seed: int = 0,
    grid_size: int = 3,
    permuted: bool = True,
) -> Ambiguity:
    """Draw puzzles and solve them."""
    check_positive(num_features=num_features)
    check_table(num_values=num_values, grid_size=grid_size)
    if num_instances < 2:
        raise InputError(f"num_instances is {num_instances}: expected at least 2, for a standard error")
    stream = Stream("sraven ambiguity", seed, rows=range(num_instances))
    multisets = torch.tensor(all_multisets(len(RULES), num_features))
    modules = multisets[stream.integers(len(multisets), 1)[:, 0]]
    grids = draw_puzzles(modules, stream, num_values=num_values, grid_size=grid_size, permuted=permuted)["grids"]
    solution, truth = solve(grids, num_values, permuted=permuted), grids[:, -1, -1]
    return Ambiguity(
        num_features=num_features,
        num_values=num_values,
        num_instances=num_instances,
        ambiguous=_estimate(solution.ambiguous),
        ambiguous_everywhere=_estimate(solution.ambiguous_everywhere(truth)),
        agnostic=_estimate(solution.probability),
        accuracy=_estimate((solution.best == truth).all(dim=1)),
    )


def tabulate_ambiguity(estimates: Sequence[Ambiguity]) -> Table:
    """Our estimates and the published ones, with standard errors."""

    def cell(estimate: Estimate | None) -> Cell | None:
        return None if estimate is None else Cell(value=estimate.value, error=estimate.standard_error)

    names = ("table A2", "by its count", "by its wording", "agnostic", "reached by the solver")
    return Table(
        title=f"ambiguity and agnostic optimum, {estimates[0].num_instances} puzzles each",
        columns=("M", "K", *(Column(name=name, digits=4) for name in names)),
        rows=tuple(
            (
                setting.num_features,
                setting.num_values,
                cell(TABLE_A2.get((setting.num_features, setting.num_values))),
                *map(cell, (setting.ambiguous_everywhere, setting.ambiguous, setting.agnostic, setting.accuracy)),
            )
            for setting in estimates
        ),
        note="± standard error\n"
        "count: another answer fits that differs in every feature · wording: any other answer fits\n"
        "agnostic: expected accuracy of the most probable answer, every multiset of rules equally likely",
    )


def _estimate(values: Tensor) -> Estimate:
    values = values.double()
    return Estimate(values.mean().item(), (values.std() / len(values) ** 0.5).item())
