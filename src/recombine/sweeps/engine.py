"""The interface of engines: an engine trains jobs somewhere, and reports which of them have ended and how.

A job is plain data, so that any process on any machine that shares the folder can train it. The engine decides where and how
many at a time; the run directory in the shared folder decides what is left to do. A job that is sent again, because its
worker was lost or the whole sweep was killed, therefore continues from its last checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from recombine.foundation.errors import InputError
from recombine.training.config import RunConfig
from recombine.training.schema import Json

# input: a mistake of the user; diverged: a loss that is not finite; error: any other exception; lost: the worker died;
# folder: the worker does not see the sweep's folder, so that no other job can succeed there either
FailureKind = Literal["input", "diverged", "error", "lost", "folder"]

LOST_RETRIES = 1  # how often a job is sent again after its worker died
CONNECT_TIMEOUT = 30.0  # seconds within which a cluster must answer


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to train, as plain data."""

    key: str  # name of the run directory
    config: Json
    code: tuple[str, ...]  # where a worker finds classes from outside the package
    out: str  # absolute path of the folder of run directories
    device: str
    threads: int
    mark: str  # name of a file in `out`: a worker that does not see it works in another folder


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended: with a run directory, or with an error."""

    key: str
    path: str = ""
    error: str = ""
    kind: FailureKind | None = None  # None: the run is finished
    details: str = ""  # the traceback of an unexpected error


class Engine(ABC):
    """Trains jobs. `threads` is the number of threads of each."""

    name: ClassVar[str]
    threads: int

    @abstractmethod
    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Train all jobs; yields each as it ends. Closing the iterator stops the jobs that are left."""

    @abstractmethod
    def describe(self) -> str:
        """Where jobs are trained and with how many threads, in one line."""


def describe_for_worker(config: RunConfig) -> tuple[Json, tuple[str, ...]]:
    """A configuration as plain data, and where a worker finds its classes from outside the package."""
    for role, origin in config.origins.items():
        if "<locals>" in origin or origin.startswith("__main__:"):
            raise InputError(
                f"{role} {origin} cannot be loaded by another process: expected a class at the top of a file"
            )
    return config.as_dict(), tuple(config.origins.values())


def lost_outcome(key: str, what: str) -> Outcome:
    """The outcome of a job whose worker died more often than it is sent again."""
    return Outcome(key=key, error=f"{what}, {LOST_RETRIES + 1} times", kind="lost")


def count_threads(count: int) -> str:
    """A number of threads in words."""
    return "1 thread" if count == 1 else f"{count} threads"
