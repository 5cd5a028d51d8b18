"""How long a batch of episodes takes to make, as a share of the training step that it is for.

    python benchmarks/grid_generators.py [--json] [--threads N]

A batch is 128 episodes, each with its expert's values or shortest way; the step is that of `recombine train TASK` at each
scale: the batch, forward, backward, AdamW. Times are the best of a few repeats, since other work on the
machine only slows; the rounds of the one alternate with those of the other. `one by one` makes the preference grid's
episodes in a Python loop, as a measure of what the batched expert saves; it first checks that they are the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from recombine.tasks.base import SCALES
from recombine.tasks.grids.preference import PreferenceGrid
from recombine.tasks.sampling import Batch
from recombine.training.config import default_run
from recombine.training.loop import BatchGroups, Trainer

BATCH_SIZE = 128
ALLOWED_SHARE = 0.1


def sample_one_by_one(task: PreferenceGrid) -> list[Batch]:
    rows = (range(row, row + 1) for row in range(BATCH_SIZE))
    return [task.sample("train", 0, batch_size=BATCH_SIZE, rows=each) for each in rows]


def measure(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least seconds of each."""
    seconds = dict.fromkeys(functions, float("inf"))
    for _, name in itertools.product(range(repeats), functions):
        start = time.perf_counter()
        functions[name]()
        seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to make a batch of episodes, beside a training step.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--repeats", type=int, default=20, help="the best of this many is reported")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result: dict[str, object] = {"benchmark": "grid_generators", "num_threads": torch.get_num_threads()}
    rows = {}
    for name, scale in itertools.product(("preference_grid", "goal_grid"), SCALES):
        run = default_run(name, scale)
        training = replace(run.training, batch_size=BATCH_SIZE)
        batches = BatchGroups(run.task, batch_size=BATCH_SIZE)
        trainer = Trainer(run.build_model(), run.task, training, "cpu")
        functions = {  # training makes its batches in groups, so both are timed for a whole group
            "batch": lambda batches=batches: batches.generate(0),
            "step": lambda batches=batches, trainer=trainer: [trainer.advance() for _ in range(batches.group_size)],
        }
        seconds = {key: each / batches.group_size for key, each in measure(functions, arguments.repeats).items()}
        milliseconds = {key: 1e3 * each for key, each in seconds.items()}
        rows[f"{name}, {scale}"] = {**milliseconds, "share": seconds["batch"] / seconds["step"]}
    grid = PreferenceGrid()
    singles = torch.cat([batch.inputs for batch in sample_one_by_one(grid)])
    assert torch.equal(singles, grid.sample("train", 0, batch_size=BATCH_SIZE).inputs)
    slow = measure({"one by one": lambda: sample_one_by_one(grid)}, 2)["one by one"]
    result |= {"rows": rows, "allowed": ALLOWED_SHARE, "milliseconds_one_by_one": 1e3 * slow}
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{BATCH_SIZE} episodes, {result['num_threads']} threads; allowed {ALLOWED_SHARE:.0%}")
    for name, row in rows.items():
        print(f"{name:<24}{row['batch']:8.2f} ms a batch{row['step']:10.1f} ms a step{row['share']:8.1%}")
    print(f"preference_grid, one episode at a time {1e3 * slow:.0f} ms a batch")


if __name__ == "__main__":
    main()
