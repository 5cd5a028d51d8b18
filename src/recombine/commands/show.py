"""recombine show TASK: one instance, for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recombine.cli import parse_task
from recombine.commands.console import Output
from recombine.tasks import SplitName


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Output):
    """Which instance to show."""

    split: SplitName = "ood"
    """Which split to draw from."""
    index: int = 0
    """Which instance of it."""
    image: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw it to this PNG or SVG file, where the task has a picture."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ShowOptions, argv, verb="show")
    batch = task.sample(options.split, options.index, batch_size=1)
    if options.image is not None:
        task.draw(batch, 0, options.image)
    composition = task.split.compositions(options.split)[batch.composition[0]]
    value = {
        "task": task.name,
        "split": options.split,
        "index": options.index,
        "composition": list(composition),
        "description": task.describe(composition),
        "inputs": batch.inputs[0].tolist(),
        "target": batch.targets[0].tolist(),
    }
    options.show(value, task.render(batch, 0))
