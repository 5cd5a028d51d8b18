"""Which engine trains the runs, and how the cores are divided among them. The fields are flags of the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import tyro

from recombine.engines.base import Engine, count_cores
from recombine.engines.local import LocalEngine
from recombine.engines.ray import RayEngine
from recombine.engines.slurm import SlurmEngine
from recombine.errors import InputError, check_choice, check_positive

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
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Existing Ray cluster, or `auto` for the one on this machine (default: start one)."""
    partition: str | None = None
    """Partition of SLURM (default: the cluster's default)."""
    time_limit: int = 1440
    """Time limit per SLURM job, in minutes. A run that reaches it goes back into the queue and continues."""
    answer_within: float = 30.0
    """Seconds within which a cluster must answer."""

    def open_engine(self, num_runs: int) -> Engine:
        """The engine for a number of runs."""
        check_choice("engine", self.engine, ENGINES)
        for name in ("jobs", "threads"):
            if getattr(self, name) is not None:
                check_positive(**{name: getattr(self, name)})
        clustered = self.engine == "slurm" or (self.engine == "ray" and self.address is not None)
        jobs, threads = split_cores(num_runs, jobs=self.jobs, threads=self.threads)
        if clustered:  # the cores of this machine say nothing about the cluster
            jobs_limit, threads = self.jobs, self.threads or read_count("OMP_NUM_THREADS") or 1
        if self.engine == "local":
            return LocalEngine(jobs=jobs, threads=threads)
        if self.engine == "ray":
            return RayEngine(
                jobs=jobs_limit if clustered else jobs,
                threads=threads,
                gpus=self.gpus,
                address=self.address,
                answer_within=self.answer_within,
            )
        return SlurmEngine(
            jobs=jobs_limit if clustered else jobs,
            threads=threads,
            gpus=self.gpus,
            cluster="slurm" if clustered else "local",
            partition=self.partition,
            time_limit=self.time_limit,
            answer_within=self.answer_within,
        )


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
