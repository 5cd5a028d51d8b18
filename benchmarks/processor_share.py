"""Training steps on one thread as a share of the processor's peak, in processor time, so that other load hardly matters.

    git worktree add /tmp/before eda4dee
    python benchmarks/processor_share.py /tmp/before . [--steps N] [--only NAME]

Each checkout trains in a process of its own. A row holds the least processor time of a step in milliseconds per checkout, and the
share of the last one: the operations of the step's matrix products by the definition, over what multiply-adds in registers
reach in the same time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

from recombine.cli import bench

CASES = (
    *(f"{task}/{attention}/float32" for task in ("sraven", "fuzzy_logic") for attention in bench.ATTENTION_NAMES),
    *("sraven/hyla_deep/float32", "language/hyla/float32", "sraven/hyla/bf16", "fuzzy_logic/hyla/bf16"),
)
MEASURE = """
import sys, time, torch
from recombine.cli import bench
torch.set_num_threads(1)
for case in sys.argv[2:]:
    workload = bench.make_workload(*case.split("/"))
    model = workload.make_model()
    step, times = workload.make_step(model, model), []
    for _ in range(2 + int(sys.argv[1])):
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    print(min(times[2:]))
"""


def measure(checkout: Path, steps: int, cases: list[str]) -> list[float]:
    """Seconds of the fastest step of each case with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    command = [sys.executable, "-c", MEASURE, str(steps), *cases]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, help="the last one's share is printed")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case for case in CASES if options.only in case]
    columns = [measure(checkout, options.steps, cases) for checkout in options.checkouts]
    peaks = {precision: bench.measure_peak(precision) for precision in bench.TYPES}
    print(bench.name_cpu(), {precision: round(peak) for precision, peak in peaks.items()}, "GFLOP/s")
    for case, *seconds in zip(cases, *columns, strict=True):
        operations, peak = bench.count_operations(bench.make_workload(*case.split("/"))), peaks[case.split("/")[2]]
        share = f"{1e-9 * operations / seconds[-1] / peak:.0%}" if peak else "no instructions"
        print(f"{case:30} {'  '.join(f'{1e3 * value:.1f}' for value in seconds)} ms  {share} of the peak", flush=True)


if __name__ == "__main__":
    main()
