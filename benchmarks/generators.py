"""What batches cost within training, as a share of a step, and the speed of the exact optima.

    python benchmarks/generators.py [TASK ...] [--scales tiny small paper] [--seconds S] [--out FILE]

Milliseconds per training batch and per whole step with the task's default model. Training generates batches in groups
(`recombine.training.trainer.BatchGroups`). One round trains on one group; the time of its generation is measured within the
round, where memory and caches are as training leaves them. Prints JSON, or writes it to a file that may hold other parts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from growth import write

from recombine.cli import bench
from recombine.tasks.base import SCALES, Scale
from recombine.tasks.families import TASKS
from recombine.tasks.sampling import Batch
from recombine.training.config import default_run
from recombine.training.schema import Json
from recombine.training.trainer import BatchGroups, Trainer

ORACLE_BATCH = 1_000
MAX_TOKENS = 1 << 14  # per batch; the language model of the paper has more, for which memory may not be enough
LONG_ROUND = 10.0  # seconds; a round that takes longer is the only one


class TimedBatchGroups(BatchGroups):
    """Training batches, with the seconds spent on generating them and on freeing the previous group."""

    seconds = 0.0

    def __getitem__(self, index: int) -> Batch:
        start = time.perf_counter()
        batch = super().__getitem__(index)
        self.seconds += time.perf_counter() - start
        return batch


def benchmark_generators(tasks: Sequence[str], scales: Sequence[Scale], seconds: float) -> list[Json]:
    """One row per task and scale."""
    rows = []
    for name, scale in product(tasks, scales):
        print(f"generators: {name} {scale}", file=sys.stderr)
        config = default_run(name, scale).prepare()
        task = config.task
        batch_size = min(config.training.batch_size, max(1, MAX_TOKENS // task.train_length))
        trainer = Trainer(config.build_model(), task, replace(config.training, batch_size=batch_size), "cpu")
        batch, step = time_training(trainer, seconds)
        solved = task.sample("ood", 0, batch_size=min(ORACLE_BATCH, task.max_rows_at_once))
        metrics = tuple(task.metrics(task.chance(solved), solved))
        solve = partial(task.reference_predictions, solved, split="ood", metrics=metrics)
        oracle = bench.take_medians(bench.time_interleaved({"oracle": solve}, seconds))["oracle"]
        rows.append(
            {
                "task": name,
                "scale": scale,
                "batch_size": batch_size,
                "batches_at_once": trainer.batches.group_size,
                "milliseconds": {"batch": 1e3 * batch, "step": 1e3 * step, "oracle": 1e3 * oracle},
                "share_of_step": batch / step,
                "instances_per_second": batch_size / batch,
                "solved_per_second": len(solved) / oracle,
            }
        )
    return rows


def time_training(trainer: Trainer, seconds: float) -> tuple[float, float]:
    """Seconds per batch and per step: medians over rounds of a group each, without the first round."""
    batches = TimedBatchGroups(trainer.task, batch_size=trainer.config.batch_size)
    trainer.batches = batches
    rounds: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) <= bench.MIN_ROUNDS:
        batches.seconds, start = 0.0, time.perf_counter()
        for _ in range(batches.group_size):
            trainer.advance()
        rounds.append((batches.seconds, time.perf_counter() - start))
        if rounds[-1][1] > LONG_ROUND:
            break
    counted = rounds[1:] or rounds
    batch, step = (statistics.median(column) / batches.group_size for column in zip(*counted, strict=True))
    return batch, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(TASKS), metavar="TASK")
    parser.add_argument("--scales", nargs="+", choices=SCALES, default=SCALES)
    parser.add_argument("--seconds", type=float, default=3.0, help="per task and scale")
    parser.add_argument("--out", type=Path, help="JSON file, whose other parts are kept")
    options = parser.parse_args()
    rows = benchmark_generators(options.tasks, options.scales, options.seconds)
    write({"machine": bench.describe_machine(), "generators": rows}, options.out)


if __name__ == "__main__":
    main()
