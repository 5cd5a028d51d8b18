"""recombine show TASK: print one instance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recombine.cli.flags import TaskOptions, parse_task
from recombine.foundation.errors import require
from recombine.tasks.sampling import SplitName
from recombine.tasks.view import use_minus_signs, write_picture


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TaskOptions):
    """Which instance to show."""

    examples = (
        "recombine show sraven --image puzzle.svg",
        "recombine show fuzzy-logic --scale tiny --split test --index 3",
    )

    split: SplitName = "ood"
    """Split to take the instance from."""
    index: int = 0
    """Number of the instance in the split."""
    image: Path | None = None
    """Also draw the instance to this SVG file, if the task has pictures."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ShowOptions, argv, verb="show")
    require(options.index >= 0, "index", options.index, "0 or a positive whole number")
    batch = task.sample(options.split, options.index, batch_size=1)
    if options.image is not None:
        write_picture(options.image, task.picture(batch, 0))
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
    options.show(value, use_minus_signs(task.render(batch, 0)))
