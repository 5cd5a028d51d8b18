"""Run a sweep: train the runs that are neither finished nor failed, store every failure, and write the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recombine.foundation.files import FAILURE
from recombine.sweeps.choose import train_all
from recombine.sweeps.engine import Engine, Outcome
from recombine.sweeps.plan import Plan, describe_plan, write_plan
from recombine.sweeps.records import Record
from recombine.sweeps.status import SweepReader, SweepStatus, write_results
from recombine.training.directory import RunDirectory
from recombine.training.run import is_up_to_date


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is left of a sweep, and what is not trained and why."""

    todo: tuple[Record, ...]
    finished: tuple[Record, ...]
    failed: tuple[Record, ...]


def find_work(records: Sequence[Record], out: Path, *, retry: bool = False) -> Work:
    """Sort records by what their run directories hold. With `retry`, failed ones are trained again."""
    todo, finished, failed = [], [], []
    for record in records:
        run = RunDirectory(out / record.config.directory_name)
        if is_up_to_date(run, record.config.task.evaluation_instances):
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
    done: Callable[[Record, Outcome], None] | None = None,
) -> SweepStatus:
    """Train what is left of a sweep; returns its status at the end. Failed runs are kept and do not stop the others.

    What is left is `work`, if that is known already; otherwise all runs that are neither finished nor failed.
    `done` is called with each run that ends. However this is left, by an error or by Ctrl-C, the results of the runs that are
    finished are written, and the rest can be trained by calling it again.
    """
    contents = describe_plan(plan)
    write_plan(contents, out)
    work, by_key, reader = work or find_work(plan.records, out), plan.by_key, SweepReader(out, contents)
    try:
        for outcome in train_all([record.config for record in work.todo], engine, out=out, device=device):
            if done is not None:
                done(by_key[outcome.key], outcome)
    finally:
        status = reader.read()
        write_results(status, out)
    return status
