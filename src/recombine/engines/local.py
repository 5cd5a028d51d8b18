"""Train several runs at the same time on this machine, each in a process of its own.

One small model alone leaves most of a machine idle. Workers stay for the whole sweep, because starting one takes seconds. A
worker that dies is replaced, and its run is resumed once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

from recombine.engines.base import LOST_RETRIES, Engine, Job, Outcome, count_threads, lost_outcome
from recombine.engines.worker import train_job
from recombine.errors import check_positive
from recombine.train import StoppedError

if TYPE_CHECKING:
    Pipe = Connection[Any, Any]
else:
    Pipe = Connection  # generic for type checkers alone: it cannot be subscripted

STOP_SECONDS = 10.0  # after which a worker that was asked to stop is killed


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
        self.process.start()
        other.close()  # so that the death of the process ends the connection
        self.job: Job | None = None

    def start(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # it has died; collecting tells
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
        self.process.join(STOP_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.connection.close()
        self.process.close()


def _serve(connection: Pipe, number: int) -> None:
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
