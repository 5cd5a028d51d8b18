"""How fast batches are made, beside a training step, and how fast their exact optima are computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from recombine.models import build_model
from recombine.run import default_run
from recombine.speed.machine import Pass, take_medians, time_interleaved
from recombine.store import Json
from recombine.tasks import TASKS
from recombine.train import Trainer

ORACLE_BATCH = 1_000


def benchmark_generators(seconds: float, say: Callable[[str], None] = lambda _: None) -> list[Json]:
    """Milliseconds of a training batch and of a whole step with the task's first model; instances a second."""
    rows = []
    for name in TASKS:
        say(f"generators: {name}")
        config = default_run(name)
        task, batch_size = config.task, config.training.batch_size
        trainer = Trainer(build_model(config.model, task, seed=0), task, config.training, "cpu")
        solved = task.sample("ood", 0, batch_size=ORACLE_BATCH)
        metrics = tuple(task.metrics(task.chance(solved), solved))
        passes: dict[str, Pass] = {
            "batch": partial(task.sample, "train", 0, batch_size=batch_size),
            "step": trainer.advance,
            "oracle": partial(task.reference_predictions, solved, split="ood", metrics=metrics),
        }
        medians = take_medians(time_interleaved(passes, seconds))
        rows.append(
            {
                "task": name,
                "batch_size": batch_size,
                "milliseconds": {each: 1e3 * value for each, value in medians.items()},
                "share_of_step": medians["batch"] / medians["step"],
                "instances_per_second": batch_size / medians["batch"],
                "solved_per_second": ORACLE_BATCH / medians["oracle"],
            }
        )
    return rows
