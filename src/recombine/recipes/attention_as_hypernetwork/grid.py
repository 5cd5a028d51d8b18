"""The grid of hyperparameters that the paper searches for each method (table A3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from recombine.errors import check_choice
from recombine.recipes.experiment import Record

GRIDS: dict[str, dict[str, tuple[float | int, ...]]] = {
    "fuzzy_logic": {"learning_rate": (1e-3, 3e-3), "weight_decay": (0.03, 0.1), "warmup_steps": (100,)},
    "sraven": {"learning_rate": (3e-4, 1e-3), "weight_decay": (0.1, 0.3), "warmup_steps": (1_000, 3_000)},
}


def over_grid(record: Record) -> Iterator[Record]:
    """A record with every point of its task's grid, which becomes part of its settings."""
    grid = GRIDS[check_choice("task with a grid", record.config.task.name, GRIDS)]
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        training = replace(record.config.training, **point)  # type: ignore[arg-type]
        varied = {name: value for name, value in point.items() if len(grid[name]) > 1}
        settings = {**record.settings, **varied}
        yield replace(record, settings=settings, config=replace(record.config, training=training))
