"""The eight rules of SRAVEN: their order, the values they deduce, and the likelihood of the visible panels.

A puzzle is a grid of G x G panels (G = 3 in the paper) of M features with values 0..K-1. Each feature follows one rule
in all G rows, and the last panel is hidden. The generator and the solver share these definitions.

Likelihood. A row of a feature has G values, and under every rule the hidden value is determined by the others, so hiding
it changes no probability. With independent rows, the likelihood of a feature that fits its rule does not depend on its
values:

- K^-G under constant and the progressions: one free value per row;
- K^-(G(G-1)) under addition and subtraction: G-1 free values per row;
- 1 / (C(K, G) (G!)^G) under distribute: one set of G distinct values per puzzle, and an order of it per row.

In grids larger than 3 the last value is the sum of all others, or the first minus all others, and distribute takes G
distinct values. In a grid of 2, addition and subtraction both repeat the first value.

Reference: Schug et al., Attention as a Hypernetwork, arXiv 2406.05816, section 4 and appendix B.3.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from recombine.compositions import Composition
from recombine.errors import InputError

RULES: tuple[str, ...] = (
    "constant",
    "progression +1",
    "progression +2",
    "progression -1",
    "progression -2",
    "addition",
    "subtraction",
    "distribute three",
)
STEPS: tuple[int, ...] = (0, 1, 2, -1, -2)  # of rules 0 to 4: constant is the progression with step 0
ADDITION, SUBTRACTION, DISTRIBUTE = 5, 6, 7

MIN_GRID_SIZE, MIN_NUM_VALUES = 2, 3


def check_sizes(*, num_values: int, grid_size: int) -> None:
    """Check that every rule is possible: distribute needs as many distinct values as the grid has columns."""
    if grid_size < MIN_GRID_SIZE:
        raise InputError(f"grid size is {grid_size}: expected at least {MIN_GRID_SIZE}")
    fewest = max(MIN_NUM_VALUES, grid_size)
    if isinstance(num_values, bool) or not isinstance(num_values, int) or num_values < fewest:
        raise InputError(
            f"num_values is {num_values!r}: expected a whole number of at least {fewest}, which the rule "
            f"{RULES[DISTRIBUTE]!r} needs at grid size {grid_size}"
        )


def deduce_last(columns: Sequence[Int[Tensor, "*shape"]], num_values: int) -> Int[Tensor, " deducing *shape"]:
    """The last column deduced from the others under each rule except distribute (which needs more than one row)."""
    first, others = columns[0], sum(columns[1:])
    progressions = [first + step * len(columns) for step in STEPS]
    return torch.stack([*progressions, first + others, first - others]) % num_values


def log_likelihoods(*, num_values: int, grid_size: int) -> tuple[float, ...]:
    """For each rule, the log-probability of the visible panels of a feature that fits it; the same for all such panels."""
    per_free_value = -grid_size * math.log(num_values)
    distribute = -math.log(math.comb(num_values, grid_size)) - grid_size * math.log(math.factorial(grid_size))
    return (*(per_free_value for _ in STEPS), *(2 * ((grid_size - 1) * per_free_value,)), distribute)


def log_num_arrangements(multiset: Composition) -> float:
    """Log of the number of distinct ways to assign the rules of a multiset to the features."""
    repeats = sum(math.lgamma(count + 1) for count in Counter(multiset).values())
    return math.lgamma(len(multiset) + 1) - repeats
