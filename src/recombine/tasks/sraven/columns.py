"""What an export of SRAVEN holds besides the columns of every task: the puzzle in numbers, and the exact solver's answers."""

from __future__ import annotations

from torch import Tensor

from recombine.tasks.batch import Batch
from recombine.tasks.sraven.solver import Solution

COLUMN_INFO = {
    "panels": "values of the visible panels in reading order, in the order of their column",
    "rules": "rule that each feature follows",
    "permutations": "feature at each position of each column",
    "ambiguous": "whether several answers fit the visible panels",
    "num_answers": "number of answers that fit",
    "posterior_of_target": "probability of the target given the visible panels, with all compositions equally likely",
}


def make_columns(batch: Batch, solution: Solution) -> dict[str, Tensor]:
    return {
        "panels": batch.info["grids"].flatten(1, 2)[:, :-1],
        "rules": batch.info["rules"],
        "permutations": batch.info["permutations"],
        "ambiguous": solution.ambiguous,
        "num_answers": solution.num_answers,
        "posterior_of_target": solution.probability_of(batch.targets),
    }
