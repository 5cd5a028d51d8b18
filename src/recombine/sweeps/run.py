"""Run a sweep: train what is neither finished nor failed through an engine, store every failure, and write the results."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from recombine.foundation.display import Table
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.foundation.files import FAILURE, name_process, remove_abandoned, write_json
from recombine.sweeps.engine import Engine, Job, Outcome, describe_for_worker
from recombine.sweeps.local import LocalEngine, record_failure
from recombine.sweeps.plan import Plan, describe_plan, make_plan
from recombine.sweeps.ray import RayEngine
from recombine.sweeps.records import Record, as_records
from recombine.sweeps.results import write_results
from recombine.sweeps.slurm import SlurmEngine
from recombine.sweeps.status import PLAN, SweepDisplay, SweepReader, SweepStatus
from recombine.training.config import RunConfig
from recombine.training.directory import RunDirectory
from recombine.training.run import is_up_to_date, train_run
from recombine.training.session import progress_bar, resolve_device
from recombine.training.trainer import DivergedError

MARK = ".shared-"
EngineName = Literal["local", "ray", "slurm"]
ENGINES = get_args(EngineName)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where runs are trained."""

    engine: EngineName = "local"
    """Where runs are trained: processes of this machine, Ray or SLURM."""
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

    def open_engine(self, num_runs: int) -> Engine:
        """The engine for a number of runs."""
        check_choice("engine", self.engine, ENGINES)
        check_positive(**{name: value for name in ("jobs", "threads") if (value := getattr(self, name)) is not None})
        jobs, threads = split_cores(num_runs, jobs=self.jobs, threads=self.threads)
        if self.engine == "local":
            return LocalEngine(jobs=jobs, threads=threads)
        shared: dict[str, Any] = {"jobs": jobs, "threads": threads, "gpus": self.gpus}
        if (
            self.engine == "slurm" or self.address is not None
        ):  # the cores of this machine say nothing about the cluster
            shared |= {"jobs": self.jobs, "threads": self.threads or read_count("OMP_NUM_THREADS") or 1}
        if self.engine == "ray":
            return RayEngine(**shared, address=self.address)
        return SlurmEngine(**shared, partition=self.partition, time_limit=self.time_limit)


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


def count_cores() -> int:
    """The number of cores that this process may use; a scheduler may allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_count(variable: str) -> int | None:
    """A count from an environment variable, or None if it is not set."""
    value = os.environ.get(variable, "").split(",")[0]
    if not value:
        return None
    if not value.isdigit() or int(value) < 1:
        raise InputError(f"{variable} is {value!r}: expected a whole number of at least 1")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Work:
    """The runs of a sweep by what is left to do."""

    todo: tuple[Record, ...]
    finished: tuple[Record, ...]
    failed: tuple[Record, ...]

    def as_table(self) -> Table:
        """Every run with its state."""
        states = {"finished": self.finished, "failed": self.failed, "to train": self.todo}
        rows = [(run.text, run.config.training.steps, state) for state, records in states.items() for run in records]
        note = f"{len(self.todo)} of {len(rows)} runs to train"
        return Table(title="Runs", columns=("run", "steps", "state"), rows=tuple(rows), note=note)


def find_work(records: Sequence[Record], out: Path, *, retry: bool = False) -> Work:
    """Sort records by what their run directories hold. With `retry`, failed ones are trained again."""
    todo, finished, failed = [], [], []
    for record in records:
        run = RunDirectory(out / record.config.directory_name)
        try:
            is_finished = is_up_to_date(run, record.config.task.evaluation_instances)
        except InputError:  # the status names the damage, and the others are trained
            failed.append(record)
            continue
        if is_finished:
            finished.append(record)
        elif (run.path / FAILURE).exists() and not retry:
            failed.append(record)
        else:
            todo.append(record)
    return Work(todo=tuple(todo), finished=tuple(finished), failed=tuple(failed))


def run_sweep(
    plan: Plan,
    engine: Engine,
    *,
    out: Path,
    device: str = "auto",
    work: Work | None = None,
    quiet: bool = True,
    done: Callable[[Outcome], None] | None = None,
) -> SweepStatus:
    """Train what is left of a sweep; returns its status at the end. A failed run is recorded and does not stop the others.

    What is left is `work`, if that is known already; otherwise all runs that are neither finished nor failed.
    `done` is called with each run that ends. However this is left, by an error or by Ctrl-C, the results of the runs that are
    finished are written, and the rest can be trained by calling it again.
    """
    contents = describe_plan(plan)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / PLAN, contents)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}; expected a writable folder") from None
    work, by_key, reader = work or find_work(plan.records, out), plan.by_key, SweepReader(out, contents)
    num_done = len(work.finished) + len(work.failed)
    try:
        with SweepDisplay(reader, total=len(plan.records), done=num_done, quiet=quiet) as display:
            for outcome in train_all([record.config for record in work.todo], engine, out=out, device=device):
                display.report(by_key[outcome.key], outcome)
                if done is not None:
                    done(outcome)
    finally:
        status = reader.read()
        write_results(status, out)
    return status


def train_runs(
    runs: Iterable[RunConfig | Record],
    *,
    out: Path | str = "runs",
    device: str = "auto",
    engine: EngineOptions | None = None,
    source: str = "train_runs",
    quiet: bool = False,
) -> list[RunDirectory]:
    """Train runs through an engine and return their run directories, in their order.

    Finished runs are reused, failed ones are trained again, and equal ones are trained once. A run that fails does not stop the
    others; its error is raised at the end. One run at a time on this machine is trained in this process. `source` says
    in `recombine sweep status` what started the runs.
    """
    folder, records = Path(out), as_records(runs)
    plan = make_plan(records, source)
    opened = (engine or EngineOptions()).open_engine(len(plan.records))
    work = find_work(plan.records, folder, retry=True)
    if work.finished and not quiet:
        _say(f"{len(work.finished)} of {len(plan.records)} runs in {out} were finished already")
    if isinstance(opened, LocalEngine) and opened.jobs == 1:
        for number, record in enumerate(work.todo, start=1):
            with progress_bar(f"{number}/{len(work.todo)} {record.text}", quiet=quiet) as bar:
                train_run(record.config, out=folder, device=device, watch=bar)
    elif work.todo:
        if not quiet:
            _say(opened.describe())
        ended: list[Outcome] = []
        run_sweep(plan, opened, out=folder, device=device, work=work, quiet=quiet, done=ended.append)
        if failed := [outcome for outcome in ended if outcome.kind]:
            raise_failure(replace(failed[0], error=f"{len(failed)} of {len(work.todo)} runs failed; {failed[0].error}"))
    return [RunDirectory(folder / record.prepare().config.directory_name) for record in records]


def _say(message: str) -> None:
    print(message, file=sys.stderr)


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
    if outcome.kind == "diverged":
        raise DivergedError(outcome.error)
    if outcome.kind == "error":
        raise RuntimeError(outcome.details or outcome.error)
    raise InputError(outcome.error)


@contextlib.contextmanager
def mark_folder(folder: Path) -> Iterator[str]:
    """The name of a file in the folder of a sweep, by which workers recognise it; it is random and removed at the end."""
    path = folder / f"{MARK}{name_process()}-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder, f"{MARK}*")
        path.touch()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; expected a writable folder") from None
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)
