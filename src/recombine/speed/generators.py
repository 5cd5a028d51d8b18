"""Time to generate a batch, as a share of a training step, and the speed of the exact optima."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from recombine.run import default_run
from recombine.speed.machine import Pass, take_medians, time_interleaved
from recombine.store import Json
from recombine.tasks import TASKS
from recombine.tasks.ahead import Ahead
from recombine.tasks.base import SCALES, Scale
from recombine.train import Trainer

ORACLE_BATCH = 1_000


def benchmark_generators(
    seconds: float, say: Callable[[str], None] = lambda _: None, scales: Sequence[Scale] = SCALES
) -> list[Json]:
    """Milliseconds per training batch and per whole step with the task's default model, at every scale.

    Training generates batches in groups (`tasks/ahead.py`), so one round generates a whole group, or trains on one; times
    are per batch and per step.
    """
    rows = []
    for name, scale in product(TASKS, scales):
        say(f"generators: {name} {scale}")
        config = default_run(name, scale)
        task, batch_size = config.task, config.training.batch_size
        ahead = Ahead(task, batch_size=batch_size)
        trainer = Trainer(config.build_model(), task, config.training, "cpu")
        solved = task.sample("ood", 0, batch_size=ORACLE_BATCH)
        metrics = tuple(task.metrics(task.chance(solved), solved))
        passes: dict[str, Pass] = {
            "batch": partial(ahead.make_group, 0),
            "step": partial(_train_group, trainer, ahead.group_size),
            "oracle": partial(task.reference_predictions, solved, split="ood", metrics=metrics),
        }
        medians = take_medians(time_interleaved(passes, seconds))
        batch, step = (medians[part] / ahead.group_size for part in ("batch", "step"))
        rows.append(
            {
                "task": name,
                "scale": scale,
                "batch_size": batch_size,
                "batches_at_once": ahead.group_size,
                "milliseconds": {"batch": 1e3 * batch, "step": 1e3 * step, "oracle": 1e3 * medians["oracle"]},
                "share_of_step": batch / step,
                "instances_per_second": batch_size / batch,
                "solved_per_second": ORACLE_BATCH / medians["oracle"],
            }
        )
    return rows


def _train_group(trainer: Trainer, group_size: int) -> None:
    for _ in range(group_size):
        trainer.advance()
