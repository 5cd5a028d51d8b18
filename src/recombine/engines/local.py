"""Train several runs at the same time, each in a process of its own: one small model alone leaves most of a machine idle."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from recombine.errors import InputError, check_positive
from recombine.run import RunConfig, train_run
from recombine.store import Json, RunDirectory


def train_runs(
    configs: Mapping[str, RunConfig],
    *,
    jobs: int,
    out: Path | str = "runs",
    device: str = "auto",
    done: Callable[[str, RunDirectory], None] | None = None,
) -> dict[str, RunDirectory]:
    """Train labelled configurations, `jobs` at a time, as `train_run` would; the cores are divided evenly among them.

    `done` is called with each run when it ends. The first run that fails stops the others, which keep their checkpoints, and
    its error is raised here.
    """
    check_positive(jobs=jobs)
    sent = {label: describe_for_worker(config) for label, config in configs.items()}
    context = multiprocessing.get_context("spawn")  # a forked process cannot use an accelerator
    threads = max(1, count_cores() // jobs)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(threads,))
    try:
        waiting = {pool.submit(_train, *each, str(out), device): label for label, each in sent.items()}
        for future in as_completed(waiting):
            run = RunDirectory.open(future.result())
            if done is not None:
                done(waiting[future], run)
        runs = {label: RunDirectory.open(future.result()) for future, label in waiting.items()}
    except BaseException:
        workers = list((pool._processes or {}).values())  # there is no public way to stop busy workers
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        raise
    pool.shutdown()
    return runs


def describe_for_worker(config: RunConfig) -> tuple[Json, tuple[str, ...]]:
    """A configuration as plain data, and where a worker finds its classes from outside the package."""
    for role, origin in config.origins.items():
        if "<locals>" in origin or origin.startswith("__main__:"):
            raise InputError(
                f"{role} {origin} cannot be loaded by another process: expected a class at the top of a file"
            )
    return config.as_dict(), tuple(config.origins.values())


def count_cores() -> int:
    """The number of cores that this process may use; a scheduler may allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # stop without a traceback; checkpoints are kept
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """End when the parent ends, however it ends: a worker that stayed behind would hold the lock of its run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _train(config: Json, code: tuple[str, ...], out: str, device: str) -> Path:
    return train_run(RunConfig.from_dict(config, code), out=out, device=device).path
