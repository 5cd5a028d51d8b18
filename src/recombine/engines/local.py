"""Several runs at once, each in a process of its own: trained one by one, small models leave most of a machine idle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from recombine.errors import check_positive
from recombine.run import RunConfig, train_run
from recombine.store import RunDirectory


def train_runs(
    configs: Mapping[str, RunConfig],
    *,
    jobs: int,
    out: Path | str = "runs",
    device: str = "auto",
    done: Callable[[str, RunDirectory], None] | None = None,
) -> dict[str, RunDirectory]:
    """Train labelled configurations, `jobs` at a time, as `train_run` would; cores are shared out evenly among them.

    `done` is told of each as it ends. The first that fails stops all others, which keep their checkpoints, and its error is
    raised here.
    """
    check_positive(jobs=jobs)
    context = multiprocessing.get_context("spawn")  # a forked process cannot use an accelerator
    threads = max(1, count_cores() // jobs)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(threads,))
    try:
        waiting = {pool.submit(_train, config, str(out), device): label for label, config in configs.items()}
        for future in as_completed(waiting):
            run = RunDirectory.open(future.result())
            if done is not None:
                done(waiting[future], run)
        runs = {label: RunDirectory.open(future.result()) for future, label in waiting.items()}
    except BaseException:
        workers = list((pool._processes or {}).values())  # there is no public way to stop those that are at work
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        raise
    pool.shutdown()
    return runs


def count_cores() -> int:
    """Those that this process may use, which a scheduler may have made fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # stop without a traceback; checkpoints are kept
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """However the parent ends: a worker that stayed behind would hold the lock of its run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _train(config: RunConfig, out: str, device: str) -> Path:
    return train_run(config, out=out, device=device).path
