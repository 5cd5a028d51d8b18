"""What a worker does with a job, whichever engine sent it: train the run, or leave the error in its directory.

While a run is trained, a file in `.running` says where, and is touched every few seconds. `recombine sweep status` reads it
from any machine that shares the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from recombine.engines.base import FailureKind, Job, Outcome
from recombine.errors import InputError
from recombine.files import replace_file
from recombine.folders import FAILURE, RUNNING
from recombine.run import RunConfig, train_run
from recombine.run.execute import open_directory
from recombine.store import LockedError, RunDirectory
from recombine.train import DivergedError

HEARTBEAT_SECONDS = 5.0
LOCK_POLL_SECONDS = 0.5


class FolderError(InputError):
    """The worker does not see the folder of the sweep."""


def train_job(job: Job) -> Outcome:
    """Train a job with its number of threads. An error becomes part of the outcome and is kept in the run directory."""
    torch.set_num_threads(job.threads)  # on purpose, whatever OMP_NUM_THREADS the engine has set
    try:
        check_folder(job)
        with heartbeat(job):
            run = _train(job)
        (run.path / FAILURE).unlink(missing_ok=True)
        return Outcome(key=job.key, path=str(run.path))
    except Exception as error:
        outcome = describe_failure(job.key, error)
        if outcome.kind != "folder":
            with contextlib.suppress(OSError, ValueError):  # the folder is read-only, or the code cannot be loaded
                record_failure(job, outcome)
        return outcome


def _train(job: Job) -> RunDirectory:
    """Train the run; if another process trains it already, wait for that one to end."""
    config = RunConfig.from_dict(job.config, job.code)
    while True:
        try:
            return train_run(config, out=job.out, device=job.device)
        except LockedError:
            time.sleep(LOCK_POLL_SECONDS)


def check_folder(job: Job) -> None:
    """Require that the worker sees what the sweep wrote into its folder."""
    if not (Path(job.out) / job.mark).exists():
        raise FolderError(
            f"{job.out} on {socket.gethostname()} is not the folder of the sweep: expected a folder that all workers share"
        )


def describe_failure(key: str, error: Exception) -> Outcome:
    """An exception as an outcome."""
    kinds: tuple[tuple[type[Exception], FailureKind], ...] = (
        (FolderError, "folder"),
        (InputError, "input"),
        (DivergedError, "diverged"),
    )
    kind: FailureKind = next((kind for owner, kind in kinds if isinstance(error, owner)), "error")
    message = str(error) if kind != "error" else f"{type(error).__name__}: {error}"
    details = "" if kind != "error" else "".join(traceback.format_exception(error))
    return Outcome(key=key, error=" ".join(message.split()), kind=kind, details=details)


def record_failure(job: Job, outcome: Outcome) -> None:
    """Keep an error in the directory of its run, which is made if it is not there yet."""
    path = Path(job.out) / job.key
    run = (
        RunDirectory(path) if path.exists() else open_directory(RunConfig.from_dict(job.config, job.code), path.parent)
    )
    failure = {
        "error": outcome.error,
        "kind": outcome.kind,
        "details": outcome.details,
        "host": socket.gethostname(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    run.write_json(FAILURE, failure)


@contextlib.contextmanager
def heartbeat(job: Job) -> Iterator[None]:
    """Say where the run is being trained, for as long as it is."""
    path = Path(job.out) / RUNNING / f"{job.key}.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, json.dumps({"host": socket.gethostname(), "process": os.getpid()}).encode())
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(path)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        path.unlink(missing_ok=True)
