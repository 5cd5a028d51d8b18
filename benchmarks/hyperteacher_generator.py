"""What part of a training step on the hyperteacher is the making of its batch: seconds of processor time, the best of a few.

python benchmarks/hyperteacher_generator.py [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from recombine.models.base import build_model
from recombine.models.mlp import MLPConfig
from recombine.training.config import RunConfig, default_run
from recombine.training.loop import BatchGroups, Trainer


def settings() -> dict[str, RunConfig]:
    small, paper = default_run("hyperteacher", "small"), default_run("hyperteacher", "paper")
    widths = {
        f"small, 2 x {width}": replace(small, model=MLPConfig(num_layers=2, hidden_dim=width))
        for width in (64, 128, 512)
    }
    return {**widths, "paper, 4 x 1024": paper}


def fastest(work: Callable[[int], object], count: int, rounds: int) -> float:
    """Processor seconds a call, in the fastest of some rounds."""
    best, number = float("inf"), 0
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            work(number)
            number += 1
        best = min(best, (time.process_time() - start) / count)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for label, run in settings().items():
        trainer = Trainer(build_model(run.model, run.task, seed=0), run.task, run.training, "cpu")
        count = 4 if label.startswith("paper") else 64
        step = fastest(lambda _, trainer=trainer: trainer.advance(), count, options.rounds)
        batches = BatchGroups(run.task, batch_size=run.training.batch_size)
        batch = fastest(lambda i, batches=batches: batches[i], 64, options.rounds)
        results[label] = {"step_ms": 1e3 * step, "batch_ms": 1e3 * batch, "share": batch / step}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for label, each in results.items():
        print(f"{label:16} step {each['step_ms']:8.2f} ms   batch {each['batch_ms']:6.3f} ms   {each['share']:.1%}")


if __name__ == "__main__":
    main()
