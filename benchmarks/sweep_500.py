"""A sweep of 500 tiny runs: overhead per run, memory and open files of all its processes, time of `recombine sweep status`.

The runs are evaluated on few instances, so that most of their time is what a sweep and a run directory take.

    python benchmarks/sweep_500.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

FILE = """
from dataclasses import dataclass
from recombine import Hyperteacher, RunConfig, TrainingConfig, over_seeds
from recombine.models import MLPConfig

@dataclass(frozen=True, kw_only=True)
class Small(Hyperteacher):
    name = "small"
    evaluation_instances = training_evaluation_instances = 50

def runs():
    return over_seeds(RunConfig(
        task=Small(num_modules=4, num_active=2, support="random"),
        model=MLPConfig(num_layers=1, hidden_dim=8),
        training=TrainingConfig(steps=20, batch_size=8),
    ), seeds=range({num_runs}))
"""


def children(process: int) -> list[int]:
    """A process and all that it started."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            found += children(int(child))
    return found


def measure(process: int) -> tuple[float, int, int]:
    """Memory in MiB, open files and number of processes."""
    memory = files = count = 0
    for each in children(process):
        try:
            memory += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
            files += len(list(Path(f"/proc/{each}/fd").iterdir()))
            count += 1
        except OSError:
            continue
    return memory / 2**20, files, count


def time_alone(path: Path, folder: Path, num_runs: int) -> float:
    """Seconds per run when runs are trained one after the other in this process."""
    import torch

    from recombine.sweeps.plan import load_plan
    from recombine.training.run import train_run

    torch.set_num_threads(1)
    records = load_plan(str(path)).records
    others = [record.with_seed(10**6 + number) for number, record in enumerate(records[: num_runs + 1])]
    train_run(replace(others[0].config), out=folder)
    start = time.perf_counter()
    for record in others[1:]:
        train_run(record.config, out=folder)
    return (time.perf_counter() - start) / num_runs


def time_workers(path: Path, folder: Path, num_runs: int) -> tuple[float, float]:
    """CPU seconds per run, alternately by `train_run` and as the job of a worker: the difference is what a worker adds."""
    from recombine.sweeps.engine import Job
    from recombine.sweeps.local import train_job
    from recombine.sweeps.plan import load_plan
    from recombine.training.run import train_run

    configs = [record.with_seed(10**7 + number).config for number, record in enumerate(load_plan(str(path)).records)]
    times: tuple[list[float], list[float]] = ([], [])
    for number, config in enumerate(configs[: 2 * num_runs]):
        job = Job(
            key=config.directory_name,
            config=config.as_dict(),
            code=tuple(config.origins.values()),
            out=str(folder),
            device="cpu",
            threads=1,
            mark="",
        )
        start = time.process_time()
        if number % 2:
            train_job(job)
        else:
            train_run(config, out=folder, device="cpu")
        times[number % 2].append(time.process_time() - start)
    return median(times[0]), median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "many.py"
        path.write_text(FILE.format(num_runs=options.runs))
        alone = time_alone(path, folder / "alone", 20)
        print(f"one run in one process, without a sweep: {1000 * alone:.0f} ms")
        plain, worker = time_workers(path, folder / "alone", 8)
        print(f"CPU time per run: {1000 * plain:.0f} ms by train_run, {1000 * worker:.0f} ms by a worker")
        command = [sys.executable, "-m", "recombine", "sweep", str(path), "--out", str(folder / "sweep")]
        command += ["--jobs", str(options.jobs), "--threads", "1"]
        start = time.perf_counter()
        with open(folder / "log", "w") as log:
            sweep = subprocess.Popen(command, stdout=log, stderr=log)
            began, next_shown = 0.0, 0
            while sweep.poll() is None:
                time.sleep(0.2)
                done = len(list(folder.glob("sweep/*/result.json")))
                began = began or (time.perf_counter() if done else 0.0)
                if done >= next_shown and done:
                    memory, files, count = measure(sweep.pid)
                    print(
                        f"{done:4} runs finished: {memory:6.0f} MiB, {files} open files, {count} processes", flush=True
                    )
                    next_shown += max(1, options.runs // 10)
        end = time.perf_counter()
        print((folder / "log").read_text().splitlines()[-1])
        print(f"start until the first result {began - start:.1f} s, then {end - began:.1f} s")
        per_run = options.jobs * (end - began) / options.runs
        print(f"{1000 * per_run:.0f} ms per run and process")
        times = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([*command[:3], "sweep", "status", str(folder / "sweep")], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        print(f"recombine sweep status: {min(times):.2f} s (fastest of {len(times)})")


if __name__ == "__main__":
    main()
