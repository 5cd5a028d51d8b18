"""Train many configurations through an engine that flags choose; each ends as a run directory or as a failure kept there."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.sweeps.engine import Engine, Job, Outcome, count_cores, describe_for_worker
from recombine.sweeps.local import LocalEngine, record_failure
from recombine.sweeps.ray import RayEngine
from recombine.sweeps.slurm import SlurmEngine
from recombine.training.config import RunConfig
from recombine.training.directory import RunDirectory
from recombine.training.loop import DivergedError
from recombine.training.run import resolve_device

EngineName = Literal["local", "ray", "slurm", "submitit"]
ENGINES: tuple[EngineName, ...] = ("local", "ray", "slurm", "submitit")


@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """Where runs are trained."""

    engine: EngineName = "local"
    """Where runs are trained: processes of this machine, Ray, SLURM, or submitit's processes (SLURM without a cluster)."""
    jobs: int | None = None
    """Runs to train at the same time (default: RECOMBINE_JOBS, or cores divided by threads; on clusters, no limit)."""
    threads: int | None = None
    """Threads per run (default: OMP_NUM_THREADS; otherwise 1, or more if there are fewer runs than cores)."""
    gpus: int = 0
    """GPUs per run to request from Ray or SLURM."""
    address: str | None = None
    """HOST:PORT of an existing Ray cluster, or `auto` for the one on this machine (default: start one)."""
    partition: str | None = None
    """Partition of SLURM (default: the cluster's default)."""
    time_limit: int = 1440
    """Time limit per SLURM job, in minutes. A run that reaches it goes back into the queue and continues."""
    answer_within: float = 30.0
    """Seconds within which a cluster must answer."""

    def open_engine(self, num_runs: int) -> Engine:
        """The engine for a number of runs."""
        check_choice("engine", self.engine, ENGINES)
        check_positive(**{name: value for name in ("jobs", "threads") if (value := getattr(self, name)) is not None})
        jobs, threads = split_cores(num_runs, jobs=self.jobs, threads=self.threads)
        if self.engine == "local":
            return LocalEngine(jobs=jobs, threads=threads)
        on_cluster = self.engine == "slurm" or (self.engine == "ray" and self.address is not None)
        shared: dict[str, Any] = {
            "jobs": jobs,
            "threads": threads,
            "gpus": self.gpus,
            "answer_within": self.answer_within,
        }
        if on_cluster:  # the cores of this machine say nothing about the cluster
            shared |= {"jobs": self.jobs, "threads": self.threads or read_count("OMP_NUM_THREADS") or 1}
        if self.engine == "ray":
            return RayEngine(**shared, address=self.address)
        cluster: Literal["slurm", "local"] = "slurm" if on_cluster else "local"
        return SlurmEngine(**shared, cluster=cluster, partition=self.partition, time_limit=self.time_limit)


def split_cores(num_runs: int, *, jobs: int | None = None, threads: int | None = None) -> tuple[int, int]:
    """Runs at a time and threads per run. By default one thread per run: measured the fastest, see docs/sweeps.md.

    The number of runs is that of the whole sweep, not of what is left: threads can change the last bits of a result, and a
    sweep that is started again should end with the same bits.
    """
    cores, num_runs = count_cores(), max(1, num_runs)
    jobs = jobs or read_count("RECOMBINE_JOBS")
    threads = threads or read_count("OMP_NUM_THREADS")
    if jobs is None and torch.cuda.is_available():
        jobs = torch.cuda.device_count()
    if threads is None:
        threads = max(1, cores // (min(num_runs, cores) if jobs is None else jobs))
    return min(jobs or max(1, cores // threads), num_runs), threads


def read_count(variable: str) -> int | None:
    """A number of the environment, if it is set."""
    value = os.environ.get(variable, "").split(",")[0]
    if not value:
        return None
    if not value.isdigit() or int(value) < 1:
        raise InputError(f"{variable} is {value!r}: expected a whole number of at least 1")
    return int(value)


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
    engine = LocalEngine(jobs=jobs, threads=split_cores(len(configs), jobs=jobs)[1])
    labels = {config.directory_name: label for label, config in configs.items()}
    finished: dict[str, RunDirectory] = {}
    for outcome in train_all(list(configs.values()), engine, out=out, device=device):
        raise_failure(outcome)
        finished[outcome.key] = RunDirectory.open(outcome.path)
        if done is not None:
            done(labels[outcome.key], finished[outcome.key])
    return {label: finished[config.directory_name] for label, config in configs.items()}


def train_all(
    configs: Sequence[RunConfig], engine: Engine, *, out: Path | str, device: str = "auto"
) -> Iterator[Outcome]:
    """Train configurations; yields each as it ends. Those with one hash are trained once. Closing stops the rest."""
    if engine.name == "local":
        resolve_device(device)  # elsewhere, the worker knows which devices there are
    folder = Path(out).absolute()
    sent = {config.directory_name: describe_for_worker(config) for config in configs}
    with mark_folder(folder) as mark:
        jobs = {
            key: Job(
                key=key, config=config, code=code, out=str(folder), device=device, threads=engine.threads, mark=mark
            )
            for key, (config, code) in sent.items()
        }
        for outcome in engine.train(list(jobs.values())) if jobs else ():
            if outcome.kind == "folder":
                raise InputError(outcome.error)
            if outcome.kind == "lost":
                record_failure(jobs[outcome.key], outcome)
            yield outcome


def raise_failure(outcome: Outcome) -> None:
    """Raise the error of a run that failed, as it was raised where it was trained."""
    if outcome.kind is None:
        return
    if outcome.kind == "diverged":
        raise DivergedError(outcome.error)
    if outcome.kind == "error":
        raise RuntimeError(outcome.details or outcome.error)
    raise InputError(outcome.error)


@contextlib.contextmanager
def mark_folder(folder: Path) -> Iterator[str]:
    """The name of a file in the folder of a sweep, by which workers recognise it; it is random and removed at the end."""
    path = folder / f".shared-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; expected a writable folder") from None
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)
