"""Which split of the cores trains the most runs per hour: processes at a time, and threads of each.

Every process trains the same workload; the steps that all of them take within the same seconds, divided by the steps of a
run, give the number of runs per hour. Evaluation is not part of it.

    python benchmarks/core_split.py --seconds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from recombine.sweeps.engine import count_cores
from recombine.training.config import default_run
from recombine.training.trainer import Trainer

WORKLOADS = {
    "fuzzy-logic": "small",
    "sraven": "tiny",
    "hyperteacher": "small",
    "sequence-teacher": "small",
}
_state: dict[str, Any] = {}


def begin(barrier: Any, start: Any) -> None:
    _state["barrier"], _state["start"] = barrier, start


def agree_on_start() -> float:
    """The same moment for all processes, soon; the clock is that of the machine."""
    if _state["barrier"].wait() == 0:
        _state["start"].value = time.perf_counter() + 0.2
    _state["barrier"].wait()
    return float(_state["start"].value)


def measure(workload: str, threads: int, active: int, seconds: float) -> float:
    """Steps per second of this process while the others train too. Some are only there to meet the others."""
    torch.set_num_threads(threads)
    config = default_run(workload, WORKLOADS[workload])
    trainer = Trainer(config.build_model(), config.task, config.training, "cpu")
    if active:
        for _ in range(5):
            trainer.advance()
    start, steps = agree_on_start(), 0
    time.sleep(max(0.0, start - time.perf_counter()))
    while active:
        trainer.advance()
        if time.perf_counter() > start + seconds:
            break
        steps += 1
    _state["barrier"].wait()
    return steps / seconds


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
    barrier, start = context.Barrier(most), context.Value("d")
    print("| workload | " + " | ".join(f"{processes} × {threads}" for processes, threads in splits) + " |")
    print("| --- |" + " ---: |" * len(splits))
    with ProcessPoolExecutor(most, mp_context=context, initializer=begin, initargs=(barrier, start)) as pool:
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
