"""The grid of hyperparameters that the paper searches for each method (table A3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recombine.errors import check_choice
from recombine.recipes.attention_as_hypernetwork.runs import ATTENTIONS
from recombine.recipes.grid import grid, search
from recombine.recipes.record import Record
from recombine.run import default_run
from recombine.tasks.base import Scale

GRIDS: dict[str, dict[str, tuple[float | int, ...]]] = {
    "fuzzy_logic": {"learning_rate": (1e-3, 3e-3), "weight_decay": (0.03, 0.1), "warmup_steps": (100,)},
    "sraven": {"learning_rate": (3e-4, 1e-3), "weight_decay": (0.1, 0.3), "warmup_steps": (1_000, 3_000)},
}


def over_grid(record: Record) -> list[Record]:
    """A record with every point of its task's grid; what varies becomes part of its settings."""
    points = GRIDS[check_choice("task with a grid", record.config.task.name, GRIDS)]
    fixed = {name: values[0] for name, values in points.items() if len(values) == 1}
    training = replace(record.config.training, **fixed)  # type: ignore[arg-type]
    varied = {name: values for name, values in points.items() if name not in fixed}
    return search(replace(record, config=replace(record.config, training=training)), **varied)


def table_a3(task: str, scale: Scale = "paper", *, attentions: Iterable[str] = ATTENTIONS) -> list[Record]:
    """The paper's search: every attention with every point of the task's grid."""
    name = task.replace("-", "_")
    check_choice("task with a grid", name, GRIDS)
    records = grid(default_run(name, scale), attention=attentions)
    return [point for record in records for point in over_grid(record)]
