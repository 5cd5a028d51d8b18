"""Which split of the cores trains the most runs per hour: processes at a time, and threads of each.

Every process trains the same workload for some seconds at the same time; the sum of their steps per second, divided by the
steps of a run, is the number of runs per hour. Evaluation is not part of it.

    python benchmarks/core_split.py --seconds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from recombine.engines import count_cores
from recombine.run import default_run
from recombine.train import Trainer

WORKLOADS = {
    "fuzzy-logic": "small",
    "sraven": "tiny",
    "hyperteacher": "small",
    "sequence-teacher": "small",
}
_state: dict[str, Any] = {}


def begin(barrier: Any) -> None:
    _state["barrier"] = barrier


def measure(workload: str, threads: int, active: int, seconds: float) -> float:
    """Steps per second of this process while the others train too."""
    torch.set_num_threads(threads)
    config = default_run(workload, WORKLOADS[workload])
    trainer = Trainer(config.build_model(), config.task, config.training, "cpu")
    if active:
        for _ in range(5):
            trainer.advance()
    _state["barrier"].wait()
    start, first = time.perf_counter(), trainer.step
    while active and time.perf_counter() - start < seconds:
        trainer.advance()
    rate = (trainer.step - first) / (time.perf_counter() - start)
    _state["barrier"].wait()
    return rate if active else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per measurement")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each split; the fastest is printed")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    options = parser.parse_args()
    cores = count_cores()
    splits = [(1, cores), (cores, 1), (cores + 1, 1), (2 * cores, 1)]
    most = max(processes for processes, _ in splits)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(most)
    print("| workload | " + " | ".join(f"{processes} × {threads}" for processes, threads in splits) + " |")
    print("| --- |" + " ---: |" * len(splits))
    with ProcessPoolExecutor(most, mp_context=context, initializer=begin, initargs=(barrier,)) as pool:
        for workload in options.workloads:
            scale = WORKLOADS[workload]
            steps = default_run(workload, scale).training.steps
            found: list[list[float]] = [[] for _ in splits]
            for _ in range(options.repeats):
                for (processes, threads), rates in zip(splits, found, strict=True):
                    futures = [
                        pool.submit(measure, workload, threads, int(number < processes), options.seconds)
                        for number in range(most)
                    ]
                    rates.append(sum(future.result() for future in futures))
            fastest = [max(rates) for rates in found]
            cells = [f"{3600 * rate / steps:.1f} ({rate:.1f})" for rate in fastest]
            print(f"| {workload} {scale}, {steps:,} steps | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
