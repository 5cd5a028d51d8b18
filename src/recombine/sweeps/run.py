"""Run a sweep: train what is neither finished nor failed, keep every failure, and write the results.

The results of a sweep: one Parquet file and one CSV file, a row per run; and the best of a grid.

Of several values of a searched hyperparameter, the best is the one with the highest mean over seeds of the main metric on
`test`, the trained compositions. `ood` never takes part in the choice; it is shown next to it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from recombine.foundation.files import FAILURE, replace_file
from recombine.foundation.tables import Cell, Column, Table, Value
from recombine.sweeps.choose import train_all
from recombine.sweeps.engine import Engine, Outcome
from recombine.sweeps.plan import Plan, describe_plan, write_plan
from recombine.sweeps.records import Record
from recombine.sweeps.status import RunStatus, SweepReader, SweepStatus
from recombine.training.directory import RunDirectory
from recombine.training.run import is_up_to_date

PARQUET = "results.parquet"
CSV = "results.csv"
PARTS = ("value", "low", "high", "chance", "ceiling", "agnostic")

Key = tuple[tuple[str, Any], ...]


def write_results(status: SweepStatus, folder: Path) -> list[Path]:
    """Write both files; returns their paths."""
    import pyarrow
    from pyarrow import parquet

    rows = [describe_run(run) for run in status.runs]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pyarrow.table({name: _same_type([row.get(name) for row in rows]) for name in names})
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    replace_file(folder / PARQUET, content.getvalue().to_pybytes())
    text = io.StringIO()
    csv.writer(text).writerows([names, *zip(*table.to_pydict().values(), strict=True)])
    replace_file(folder / CSV, text.getvalue().encode())
    return [folder / PARQUET, folder / CSV]


def describe_run(run: RunStatus) -> dict[str, Any]:
    """A run as one row: settings, seed, state, and every score with its bounds, such as `test_r2` and `test_r2_low`."""
    row: dict[str, Any] = {
        "run": run.run,
        **run.settings,
        "seed": run.seed,
        "state": run.state,
        "error": run.error or None,
    }
    row |= {"step": run.step, "steps": run.steps}
    names = ("task", "model", "label", "num_parameters", "seconds", "steps_per_second", "split_sha256")
    row |= {name: run.result.get(name) for name in names}
    for split, metrics in run.result.get("scores", {}).items():
        for metric, score in metrics.items():
            for part in PARTS:
                row[f"{split}_{metric}" + ("" if part == "value" else f"_{part}")] = score.get(part)
    return row


def _same_type(values: list[Any]) -> list[Any]:
    """Values of one column: numbers if all are numbers, otherwise text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} or kinds <= {float, int}:
        return values if float not in kinds else [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def choose_best(status: SweepStatus) -> Table:
    """One row per combination of compared settings, with the hyperparameters that are best on `test`."""
    runs = status.select("finished")
    groups = _group(runs, searched=False)
    compared = list(dict.fromkeys(name for key in groups for name, _ in key))
    searched = list(dict.fromkeys(name for run in runs for name in run.searched))
    names = list(dict.fromkeys((*compared, *searched)))
    metrics = list(dict.fromkeys(run.metric for run in status.runs))
    planned = Counter(_key(run, True) for run in status.runs)
    best = [_choose_point(members, planned) for members in groups.values()]
    best.sort(key=lambda point: (metrics.index(point.runs[0].metric), -point.merit))
    title = _title(runs, metrics[0]) if len(metrics) == 1 else "main metric"
    chosen = "hyperparameters and order: chosen on test" if searched else "in order of test"
    return Table(
        title="Best of the grid" if searched else "Results",
        columns=(
            *(Column(name=name.replace("_", " "), format="plain") for name in names),
            "seeds",
            *(["points"] if searched else []),
            f"{title}, test",
            "ood",
        ),
        rows=tuple(_describe_point(point, names, bool(searched)) for point in best),
        note=f"{chosen}, the seen compositions; ood has held-out compositions and is only shown. Means over seeds",
    )


class Point(NamedTuple):
    """Runs that differ in their seed only, chosen among `num_points` values of the hyperparameters."""

    runs: Sequence[RunStatus]
    num_points: int

    @property
    def merit(self) -> float:
        """The mean score on `test`, so that higher is better."""
        mean = _mean(self.runs, "test")
        return float("-inf") if mean is None else mean if self.runs[0].higher_is_better else -mean


def _choose_point(members: Sequence[RunStatus], planned: Mapping[Key, int]) -> Point:
    """The best hyperparameters of runs that otherwise differ in their seed only; first among those with all their seeds."""
    points = [Point(runs, 0) for runs in _group(members, searched=True).values()]
    complete = [point for point in points if len(point.runs) == planned[_key(point.runs[0], True)]]
    return max(complete or points, key=lambda point: point.merit)._replace(num_points=len(points))


def _describe_point(point: Point, names: Sequence[str], searched: bool) -> tuple[Value, ...]:
    settings = [point.runs[0].settings.get(name) for name in names]
    counts = [len(point.runs), *([point.num_points] if searched else [])]
    return (*settings, *counts, _cell(point.runs, "test"), _cell(point.runs, "ood"))


def _group(runs: Sequence[RunStatus], *, searched: bool) -> dict[Key, list[RunStatus]]:
    """Runs that differ in their seed only, or, without `searched`, also in their hyperparameters."""
    groups: dict[Key, list[RunStatus]] = {}
    for run in runs:
        groups.setdefault(_key(run, searched), []).append(run)
    return groups


def _key(run: RunStatus, searched: bool) -> Key:
    return tuple((name, value) for name, value in run.settings.items() if searched or name not in run.searched)


def _mean(runs: Sequence[RunStatus], split: str) -> float | None:
    values = [value for run in runs if (value := run.score(split)) is not None]
    return fmean(values) if values else None


def _cell(runs: Sequence[RunStatus], split: str) -> Cell | None:
    values = [value for run in runs if (value := run.score(split)) is not None]
    return Cell(value=fmean(values), values=tuple(values) if len(values) > 1 else ()) if values else None


def _title(runs: Sequence[RunStatus], metric: str) -> str:
    metrics: Mapping[str, Any] = runs[0].result.get("metrics", {}) if runs else {}
    return str(metrics.get(metric, {}).get("title", metric))


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
    retry: bool = False,
    done: Callable[[Record, Outcome], None] | None = None,
) -> SweepStatus:
    """Train what is left of a sweep; returns its status at the end. Failed runs are kept and do not stop the others.

    `done` is called with each run that ends. However this is left, by an error or by Ctrl-C, the results of the runs that are
    finished are written, and the rest can be trained by calling it again.
    """
    contents = describe_plan(plan)
    write_plan(contents, out)
    work, by_key, reader = find_work(plan.records, out, retry=retry), plan.by_key, SweepReader(out, contents)
    try:
        for outcome in train_all([record.config for record in work.todo], engine, out=out, device=device):
            if done is not None:
                done(by_key[outcome.key], outcome)
    finally:
        status = reader.read()
        write_results(status, out)
    return status
