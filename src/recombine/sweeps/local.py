"""Train several runs at the same time on this machine, each in its own process.

One small model alone leaves most of a machine idle. Workers stay for the whole sweep, because starting one takes seconds. A
worker that dies is replaced, and its run is resumed once.

`train_job` is what the workers of all engines run: it trains a job, or stores the error in the run directory.

While a run is trained, a file in `.running` says where, and is touched every few seconds. `recombine sweep status` reads it
from any machine that shares the folder.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from recombine.foundation.errors import InputError, check_positive
from recombine.foundation.files import FAILURE, RUNNING, write_json
from recombine.foundation.imports import safe_path
from recombine.sweeps.engine import LOST_RETRIES, Engine, FailureKind, Job, Outcome, count_threads, lost_outcome
from recombine.sweeps.status import require_own
from recombine.training.config import RunConfig
from recombine.training.directory import LockedError, RunDirectory
from recombine.training.run import open_directory, train_run
from recombine.training.session import StoppedError
from recombine.training.trainer import DivergedError

HEARTBEAT_SECONDS = 5.0
LOCK_POLL_SECONDS = 0.5


class FolderError(InputError):
    """The worker does not see the folder of the sweep."""


def train_job(job: Job) -> Outcome:
    """Train a job with its number of threads. An error becomes the outcome and is stored in the run directory."""
    torch.set_num_threads(job.threads)  # on purpose, whatever OMP_NUM_THREADS the engine has set
    try:
        if not (Path(job.out) / job.mark).exists():
            raise FolderError(
                f"{job.out} on {socket.gethostname()} is not the folder of the sweep: expected a folder that all workers share"
            )
        with heartbeat(job):
            config = RunConfig.from_dict(job.config, job.code)
            while True:
                with contextlib.suppress(LockedError):
                    run = train_run(config, out=job.out, device=job.device)
                    break
                time.sleep(LOCK_POLL_SECONDS)  # another process trains it already
        (run.path / FAILURE).unlink(missing_ok=True)
        return Outcome(key=job.key, path=str(run.path))
    except Exception as error:
        outcome = describe_failure(job.key, error)
        if outcome.kind != "folder":
            with contextlib.suppress(OSError, ValueError):  # the folder is read-only, or the code cannot be loaded
                record_failure(job, outcome)
        return outcome


def describe_failure(key: str, error: Exception) -> Outcome:
    """An exception as an outcome."""
    kinds: dict[type[Exception], FailureKind] = {FolderError: "folder", InputError: "input", DivergedError: "diverged"}
    kind: FailureKind = next((kind for owner, kind in kinds.items() if isinstance(error, owner)), "error")
    message = str(error) if kind != "error" else f"{type(error).__name__}: {error}"
    details = "" if kind != "error" else "".join(traceback.format_exception(error))
    return Outcome(key=key, error=" ".join(message.split()), kind=kind, details=details)


def record_failure(job: Job, outcome: Outcome) -> None:
    """Store an error in the directory of its run, which is created if it is missing."""
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
    """Keep a file up to date that says where the run is being trained, until the block ends."""
    path = Path(job.out) / RUNNING / f"{job.key}.json"
    require_own(path.parent)
    require_own(Path(job.out) / job.key)
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"host": socket.gethostname(), "process": os.getpid()})
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


STOP_TIMEOUT = 10.0  # seconds after which a worker that was asked to stop is killed


class LocalEngine(Engine):
    """Processes on this machine."""

    name = "local"

    def __init__(self, *, jobs: int, threads: int) -> None:
        check_positive(jobs=jobs, threads=threads)
        self.jobs, self.threads = jobs, threads

    def describe(self) -> str:
        processes = "1 process" if self.jobs == 1 else f"{self.jobs} processes"
        return f"{processes} on this machine, each with {count_threads(self.threads)}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        waiting, lost = deque(jobs), Counter[str]()
        workers = [Worker(number) for number in range(min(self.jobs, len(jobs)))]
        try:
            for worker in workers:
                worker.start(waiting.popleft())
            while busy := {worker.connection: worker for worker in workers if worker.job is not None}:
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    job, outcome = worker.job, worker.collect()
                    assert job is not None
                    if outcome is None:  # the process died
                        workers.remove(worker)
                        workers.append(worker := Worker(worker.number))
                        lost[job.key] += 1
                        if lost[job.key] > LOST_RETRIES:
                            outcome = lost_outcome(job.key, "the worker process died")
                        else:
                            waiting.appendleft(job)
                    if waiting:
                        worker.start(waiting.popleft())
                    if outcome is not None:
                        yield outcome
        finally:
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join()


class Worker:
    """A process that trains one job after another."""

    def __init__(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use an accelerator
        self.number = number
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, number), daemon=True)
        with safe_path():
            self.process.start()
        other.close()  # so that the death of the process ends the connection
        self.job: Job | None = None

    def start(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # the process has died; `collect` reports it
            self.connection.send(job)

    def collect(self) -> Outcome | None:
        """The outcome of the job, or None if the process died."""
        self.job = None
        try:
            outcome: Outcome = self.connection.recv()
            return outcome
        except (EOFError, OSError):
            self.join()
            return None

    def stop(self) -> None:
        if self.job is not None:
            self.process.terminate()  # the run keeps its last checkpoint
        self.connection.close()

    def join(self) -> None:
        self.process.join(STOP_TIMEOUT)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        self.process.close()


def _serve(connection: Any, number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # stop without a traceback; checkpoints are kept
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):  # the sweep has ended, or was killed
            return
        try:
            connection.send(train_job(job))
        except StoppedError:  # the engine ends this worker; the run has a checkpoint of its last step
            return


def _end_with_parent() -> None:
    """End when the parent ends, however it ends: a worker that stayed behind would hold the lock of its run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
