"""SRAVEN by the words of the paper, one value at a time: rules, puzzles drawn with numpy, and Bayes by brute force."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection

import numpy as np
import torch

from recombine.compositions import Composition, all_multisets
from recombine.tasks.sraven.generator import RULES, log_likelihoods

STEPS = {0: 0, 1: 1, 2: 2, 3: -1, 4: -2}
Posterior = dict[tuple[int, ...], float]


def obeys(rule: int, rows: list[list[int]], num_values: int) -> bool:
    """Whether the rows of one feature follow a rule."""
    if rule in STEPS:
        return all((b - a - STEPS[rule]) % num_values == 0 for row in rows for a, b in itertools.pairwise(row))
    if rule == 7:
        return all(len(set(row)) == len(row) and set(row) == set(rows[0]) for row in rows)
    sign = 1 if rule == 5 else -1
    return all((row[0] + sign * sum(row[1:-1]) - row[-1]) % num_values == 0 for row in rows)


def sample_feature(rng: np.random.Generator, rule: int, num_values: int, grid_size: int) -> np.ndarray:
    """The values (row, column) of one feature."""
    if rule in STEPS:
        return (rng.integers(0, num_values, (grid_size, 1)) + STEPS[rule] * np.arange(grid_size)) % num_values
    if rule == 7:
        values = rng.choice(num_values, grid_size, replace=False)
        return np.stack([rng.permutation(values) for _ in range(grid_size)])
    free = rng.integers(0, num_values, (grid_size, grid_size - 1))
    others = free[:, 1:].sum(axis=1)
    return np.column_stack([free, (free[:, 0] + (others if rule == 5 else -others)) % num_values])


def sample(num_puzzles, num_features, num_values=8, grid_size=3, *, permuted=True, multisets=None, seed=0):
    """Puzzles (batch, row, column, feature), with their answers in the last panel."""
    rng = np.random.default_rng(seed)
    multisets = multisets or all_multisets(len(RULES), num_features)
    grids = np.empty((num_puzzles, grid_size, grid_size, num_features), dtype=np.int64)
    for grid, chosen in zip(grids, rng.choice(len(multisets), num_puzzles), strict=True):
        for feature, rule in enumerate(rng.permutation(multisets[chosen])):
            grid[..., feature] = sample_feature(rng, rule, num_values, grid_size)
        for column in range(grid_size if permuted else 0):
            grid[:, column] = grid[:, column, rng.permutation(num_features)]
    return torch.from_numpy(grids)


def find_posterior(
    grid: torch.Tensor, num_values: int, prior: Collection[Composition], permuted: bool = True
) -> Posterior:
    """The probability of every answer: all ways to pair positions of the columns, all rules of each chain of positions."""
    size, _, num_features = grid.shape
    panels = grid.tolist()
    likelihoods = [math.exp(each) for each in log_likelihoods(num_values=num_values, grid_size=size)]

    def explain(chain: tuple[int, ...]) -> list[tuple[int, int]]:
        rows = [[panels[row][column][chain[column]] for column in range(size)] for row in range(size)]
        completed = [(value, [*rows[:-1], [*rows[-1][:-1], value]]) for value in range(num_values)]
        return [(rule, value) for value, full in completed for rule in range(8) if obeys(rule, full, num_values)]

    explanations = {chain: explain(chain) for chain in itertools.product(range(num_features), repeat=size)}
    first = tuple(range(num_features))
    orders = list(itertools.permutations(first)) if permuted else [first]
    weights: dict[tuple[int, ...], float] = defaultdict(float)
    for others in itertools.product(orders, repeat=size - 1):
        for hypothesis in itertools.product(*(explanations[chain] for chain in zip(first, *others, strict=True))):
            rules = tuple(sorted(rule for rule, _ in hypothesis))
            if rules in prior:
                arrangements = math.factorial(num_features) / math.prod(map(math.factorial, Counter(rules).values()))
                placed = sorted(zip(others[-1], (value for _, value in hypothesis), strict=True))
                answer = tuple(value for _, value in placed)
                weights[answer] += math.prod(likelihoods[rule] for rule in rules) / arrangements
    total = sum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}
