"""SRAVEN puzzles drawn one at a time with numpy, apart from the package's own generator."""

from __future__ import annotations

import numpy as np
import torch

from recombine.compositions import all_multisets
from recombine.tasks.sraven.generator import RULES

STEP = {0: 0, 1: 1, 2: 2, 3: -1, 4: -2}


def sample_feature(rng: np.random.Generator, rule: int, num_values: int, grid_size: int) -> np.ndarray:
    """The values (row, column) of one feature."""
    if rule in STEP:
        return (rng.integers(0, num_values, (grid_size, 1)) + STEP[rule] * np.arange(grid_size)) % num_values
    if rule == 7:
        values = rng.choice(num_values, grid_size, replace=False)
        return np.stack([rng.permutation(values) for _ in range(grid_size)])
    free = rng.integers(0, num_values, (grid_size, grid_size - 1))
    others = free[:, 1:].sum(axis=1)
    last = free[:, 0] + others if rule == 5 else free[:, 0] - others
    return np.column_stack([free, last % num_values])


def sample(
    num_puzzles, num_features, num_values=8, grid_size=3, *, permuted=True, multisets=None, weights=None, seed=0
):
    """Puzzles (batch, row, column, feature), with their answers in the last panel."""
    rng = np.random.default_rng(seed)
    multisets = multisets or all_multisets(len(RULES), num_features)
    shares = None if weights is None else np.array(weights) / sum(weights)
    grids = np.empty((num_puzzles, grid_size, grid_size, num_features), dtype=np.int64)
    for grid, chosen in zip(grids, rng.choice(len(multisets), num_puzzles, p=shares), strict=True):
        for feature, rule in enumerate(rng.permutation(multisets[chosen])):
            grid[..., feature] = sample_feature(rng, rule, num_values, grid_size)
        for column in range(grid_size if permuted else 0):
            grid[:, column] = grid[:, column, rng.permutation(num_features)]
    return torch.from_numpy(grids)
