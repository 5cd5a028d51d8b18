"""The eight rules of SRAVEN, the likelihood of the visible panels, and how puzzles are drawn.

A puzzle is a grid of G x G panels (G = 3 in the paper) of M features with values 0..K-1. Each feature follows one rule
in all G rows, and the last panel is hidden. In grids larger than 3 the last value of addition is the sum of all others,
that of subtraction the first minus all others, and distribute has G distinct values. In a grid of 2, addition and
subtraction both repeat the first value.

The following are uniformly random and independent: which latent feature follows which rule of the multiset; for each
column, which latent feature is at which position; for each row of a feature its free values, one under constant and the
progressions, G-1 under addition and subtraction; under distribute one set of G distinct values per puzzle, and an order
of it per row. Under every rule the hidden value is determined by the others, so the likelihood of a feature that fits its
rule does not depend on its values:

- K^-G under constant and the progressions;
- K^-(G(G-1)) under addition and subtraction;
- 1 / (C(K, G) (G!)^G) under distribute.

A row of a feature is an entry of a table, which lists the K^(G-1) rows of each rule that deduces the last column, rule by
rule (a progression repeats its K rows as often as needed), then the C(K, G) G! rows of distribute.

Reference: Schug et al., Attention as a Hypernetwork, arXiv 2406.05816, section 4 and appendix B.3.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from recombine.compositions import Composition
from recombine.foundation.errors import InputError, require
from recombine.random import Stream

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
MAX_TABLE_ROWS = 1 << 21
MAX_TABULATED_PERMUTATION = 7


def check_sizes(*, num_values: int, grid_size: int) -> None:
    """Check that every rule is possible (distribute needs as many values as columns) and that the table is not too large."""
    require(grid_size >= MIN_GRID_SIZE, "grid size", grid_size, f"at least {MIN_GRID_SIZE}")
    fewest = max(MIN_NUM_VALUES, grid_size)
    expected = (
        f"a whole number of at least {fewest}, which the rule {RULES[DISTRIBUTE]!r} needs at grid size {grid_size}"
    )
    require(num_values >= fewest, "num_values", num_values, expected)
    num_free, num_sets, num_orders = _count_rows(num_values, grid_size)
    num_rows = DISTRIBUTE * num_free + num_sets * num_orders
    if num_rows > MAX_TABLE_ROWS:
        raise InputError(
            f"num_values is {num_values} at grid size {grid_size}, which gives {num_rows} different rows of a feature: "
            f"expected at most {MAX_TABLE_ROWS}"
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
    return (*[per_free_value] * len(STEPS), *[(grid_size - 1) * per_free_value] * 2, distribute)


def log_num_arrangements(multiset: Composition) -> float:
    """Log of the number of distinct ways to assign the rules of a multiset to the features."""
    repeats = sum(math.lgamma(count + 1) for count in Counter(multiset).values())
    return math.lgamma(len(multiset) + 1) - repeats


def draw_puzzles(
    modules: Int[Tensor, "rows features"], stream: Stream, *, num_values: int, grid_size: int, permuted: bool
) -> dict[str, Tensor]:
    """`rules` (rows, latent feature), `permutations` (rows, column, position), `grids` (rows, row, column, position)."""
    num_features = modules.shape[1]
    orders = _draw_permutations(num_features, grid_size + 1, stream)
    rules, permutations = modules.gather(1, orders[:, 0]), orders[:, 1:].contiguous()
    if not permuted:  # permutations are drawn anyway, so that switching them off changes nothing else
        permutations = torch.arange(num_features, device=stream.device).expand_as(permutations).contiguous()
    entries = _draw_entries(rules, stream, num_values, grid_size)
    shape = (len(rules), grid_size, grid_size, num_features)
    entries = entries[:, :, None].expand(shape).gather(3, permutations[:, None].expand(shape))
    table = tabulate_rows(num_values, grid_size, stream.device)
    first = torch.arange(grid_size, device=stream.device).mul_(table.shape[1]).repeat_interleave(num_features)
    entries.flatten(2).add_(first)
    return {"rules": rules, "permutations": permutations, "grids": look_up(table.view(-1), entries)}


def look_up(table: Tensor, entries: Int[Tensor, "*shape"]) -> Tensor:
    """`table[entries]`, several times as fast on a CPU."""
    return table.index_select(0, entries.reshape(-1)).view(*entries.shape, *table.shape[1:])


def _draw_permutations(size: int, count: int, stream: Stream) -> Int[Tensor, "rows count size"]:
    if size > MAX_TABULATED_PERMUTATION:
        return stream.permutations(size, count)
    table = tabulate_permutations(size, stream.device)
    return look_up(table, torch.stack(stream.digits([len(table)] * count), dim=1))


def _draw_entries(
    rules: Int[Tensor, "rows features"], stream: Stream, num_values: int, grid_size: int
) -> Int[Tensor, "rows row features"]:
    """The table entry for each row of each latent feature."""
    num_free, num_sets, num_orders = _count_rows(num_values, grid_size)
    digits = stream.digits([*[num_free] * grid_size, num_sets, *[num_orders] * grid_size], rules.shape[1])
    free, chosen, orders = digits[:grid_size], digits[grid_size], digits[grid_size + 1 :]
    is_distribute = rules == DISTRIBUTE
    first = rules * num_free + chosen * (is_distribute * num_orders)
    rows = [torch.where(is_distribute, order, row).add_(first) for row, order in zip(free, orders, strict=True)]
    return torch.stack(rows, dim=1)


def _count_rows(num_values: int, grid_size: int) -> tuple[int, int, int]:
    """Number of rows of a rule with free values, of sets of values, and of orders of a set."""
    return num_values ** (grid_size - 1), math.comb(num_values, grid_size), math.factorial(grid_size)


@lru_cache(maxsize=16)
def tabulate_rows(num_values: int, grid_size: int, device: torch.device) -> Int[Tensor, "column entry"]:
    """Every row that a feature can have, as the module's docstring orders them."""
    free = torch.cartesian_prod(*[torch.arange(num_values)] * (grid_size - 1)).view(-1, grid_size - 1)
    *_, added, subtracted = deduce_last(free.unbind(dim=1), num_values)
    rows = [(free[:, :1] + step * torch.arange(grid_size)) % num_values for step in STEPS]
    rows += [torch.cat([free, last[:, None]], dim=1) for last in (added, subtracted)]
    sets = torch.combinations(torch.arange(num_values), grid_size)
    rows.append(sets[:, tabulate_permutations(grid_size, torch.device("cpu"))].flatten(0, 1))
    return torch.cat(rows).T.contiguous().to(device)


@lru_cache(maxsize=16)
def tabulate_permutations(size: int, device: torch.device) -> Int[Tensor, "permutation size"]:
    """All orders of 0..size-1, lexicographically."""
    return torch.tensor(list(itertools.permutations(range(size))), device=device)
