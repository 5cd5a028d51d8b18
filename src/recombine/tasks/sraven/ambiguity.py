"""How often a SRAVEN puzzle has more than one answer, and the accuracy that is still possible (arXiv 2406.05816, table A2).

Puzzles are drawn by the generator, with every multiset of rules equally likely, and solved exactly. Table A2 counts a
puzzle as ambiguous if some answer that fits differs from the true one in *every* feature; by the text of appendix B.2 it is
ambiguous if an answer differs at all. Both are estimated, and so is the agnostic optimum, the accuracy of the best solver
that considers every multiset equally likely: once as the mean posterior of its answers, once as the share that are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from recombine.compositions import all_multisets
from recombine.errors import InputError, check_positive
from recombine.tables import Cell, Column, Table
from recombine.tasks.sraven.generator import check_table, draw_puzzles
from recombine.tasks.sraven.rules import RULES
from recombine.tasks.sraven.solver import solve
from recombine.tasks.stream import Stream


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
