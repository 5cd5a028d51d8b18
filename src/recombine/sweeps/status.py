"""How far a sweep is, read from its folder. It needs neither torch nor the code of the runs, so it answers at once.

A run is finished if it has a result, failed if it has a failure, and running if a worker has touched its file in `.running`
within a minute; otherwise it is waiting, with the step of its last metrics if it was interrupted.

The results of a sweep are one Parquet file and one CSV file with a row per run. Of several values of a searched
hyperparameter, the best is the one with the highest mean over seeds of the main metric on `test`, the trained compositions.
`ood` never takes part in the choice; it is shown next to it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from recombine.foundation.display import Cell, Column, Number, Table, describe_settings
from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import FAILURE, METRICS, RESULT, RUNNING, parse_json, read_json, replace_file
from recombine.training.schema import MetricsRow, ResultFile

FORMAT = "recombine-sweep"
FORMAT_VERSION = 1
PLAN = "sweep.json"
SILENT_SECONDS = 60.0  # after which a worker counts as dead
LAST_BYTES = 16_384  # of the metrics: several rows

State = Literal["finished", "failed", "running", "waiting"]
STATES: tuple[State, ...] = ("running", "finished", "failed", "waiting")


class PlannedRun(TypedDict):
    """A run in `sweep.json`."""

    run: Annotated[str, msgspec.Meta(pattern="^[-.A-Za-z0-9_]+$")]  # the name of its directory
    settings: dict[str, str | int | float | bool | None]
    searched: list[str]
    seed: int
    steps: int
    metric: str
    higher_is_better: bool


class PlanFile(TypedDict):
    """`sweep.json`."""

    format: str
    format_version: int
    source: str
    runs: list[PlannedRun]


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run of a sweep."""

    run: str
    settings: Mapping[str, Any]
    seed: int
    searched: Sequence[str]
    steps: int
    metric: str
    higher_is_better: bool
    state: State
    step: int = 0
    seconds: float = 0.0  # spent in training so far
    error: str = ""
    result: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def score(self, split: str, metric: str | None = None) -> float | None:
        value = self.result.get("scores", {}).get(split, {}).get(metric or self.metric, {}).get("value")
        return None if value is None else float(value)

    @property
    def text(self) -> str:
        """The settings and the seed in words."""
        return describe_settings({**self.settings, "seed": self.seed})


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """All runs of a sweep."""

    source: str
    runs: tuple[RunStatus, ...]

    def count(self, state: State) -> int:
        return sum(run.state == state for run in self.runs)

    def select(self, state: State) -> list[RunStatus]:
        return [run for run in self.runs if run.state == state]

    @property
    def steps_per_second(self) -> float:
        """The sum over running runs."""
        return sum((run.step / run.seconds for run in self.select("running") if run.seconds), 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Time left if runs go on at the speed of those that are running; None if nothing is known yet."""
        steps = sum(run.steps - run.step for run in self.runs if run.state in ("running", "waiting"))
        speed = self.steps_per_second
        return 0.0 if not steps else steps / speed if speed else None

    @property
    def best(self) -> RunStatus | None:
        """The finished run with the best score on `test`, by the metric of the first run."""
        metric = self.runs[0].metric
        scored = [run for run in self.select("finished") if run.score("test", metric) is not None]
        sign = 1 if self.runs[0].higher_is_better else -1
        return max(scored, key=lambda run: sign * (run.score("test", metric) or 0.0), default=None)


class SweepReader:
    """Reads the status of a sweep; results, which do not change, are read once."""

    def __init__(self, folder: Path | str, plan: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self.plan = plan  # if None, the plan in the folder, which another sweep may replace
        self.results: dict[Path, tuple[int, Mapping[str, Any]]] = {}

    def read(self) -> SweepStatus:
        plan = self.plan or read_plan(self.folder)
        alive = _list_alive(self.folder / RUNNING)
        return SweepStatus(source=plan["source"], runs=tuple(self._read_run(entry, alive) for entry in plan["runs"]))

    def read_run(self, key: str) -> RunStatus:
        """One run, by the name of its directory."""
        plan = self.plan or read_plan(self.folder)
        return next(self._read_run(entry, set()) for entry in plan["runs"] if entry["run"] == key)

    def _read_run(self, entry: dict[str, Any], alive: set[str]) -> RunStatus:
        path = self.folder / entry["run"]
        if entry["run"] in alive:
            step, seconds = _read_progress(path)
            return RunStatus(**entry, state="running", step=step, seconds=seconds)
        result = self._read_result(path / RESULT)
        if result is not None:
            return RunStatus(
                **entry, state="finished", step=entry["steps"], seconds=float(result.get("seconds", 0)), result=result
            )
        step, seconds = _read_progress(path)
        if (path / FAILURE).exists():
            error = str(read_json(path / FAILURE).get("error"))
            return RunStatus(**entry, state="failed", step=step, seconds=seconds, error=error)
        return RunStatus(**entry, state="waiting", step=step, seconds=seconds)

    def _read_result(self, path: Path) -> Mapping[str, Any] | None:
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        if self.results.get(path, (0, {}))[0] != changed:
            result = read_json(path, ResultFile, complete=False)
            large = ("composition_sums", "baselines")
            self.results[path] = changed, {name: value for name, value in result.items() if name not in large}
        return self.results[path][1]


def read_plan(folder: Path) -> dict[str, Any]:
    """The list of runs that `recombine sweep` left in its folder."""
    path = folder / PLAN
    plan: dict[str, Any] = read_json(path) if path.exists() else {}
    if plan.get("format") != FORMAT:
        raise InputError(
            f"{folder} is not the folder of a sweep: expected one with a {PLAN} that `recombine sweep` wrote"
        )
    if plan.get("format_version") != FORMAT_VERSION:
        raise InputError(f"{path} has version {plan.get('format_version')!r}: expected {FORMAT_VERSION}")
    if (fault := find_schema_error(plan, PlanFile)) is not None:
        raise InputError(f"{path} is damaged: {fault}")
    return plan


def _list_alive(folder: Path) -> set[str]:
    """The runs whose workers have given a sign of life."""
    alive = set()
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # the worker has just ended
            if time.time() - path.stat().st_mtime < SILENT_SECONDS:
                alive.add(path.stem)
    return alive


def _read_progress(path: Path) -> tuple[int, float]:
    """Step and seconds of the last whole line of a run's metrics."""
    try:
        with open(path / METRICS, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0, 0.0
    for line in reversed(lines):
        with contextlib.suppress(InputError):  # a row that is being written
            row = parse_json(line, MetricsRow, METRICS)
            return row["step"], float(row.get("seconds", 0))
    return 0, 0.0


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
    """One row per combination of compared settings, with the hyperparameters that are best on `test`.

    Values of the hyperparameters take part with all their seeds, as long as any has them.
    """
    runs = status.select("finished")
    groups = _group(runs, searched=False)
    searched = list(dict.fromkeys(name for run in runs for name in run.searched))
    names = list(dict.fromkeys([*(name for key in groups for name, _ in key), *searched]))
    metrics = list(dict.fromkeys(run.metric for run in status.runs))
    planned = Counter(_key(run, searched=True) for run in status.runs)
    best: list[tuple[Sequence[RunStatus], int]] = []
    for members in groups.values():
        points = _group(members, searched=True)
        complete = [point for key, point in points.items() if len(point) == planned[key]]
        best.append((max(complete or points.values(), key=_merit), len(points)))
    best.sort(key=lambda choice: (metrics.index(choice[0][0].metric), -_merit(choice[0])))
    rows = tuple(
        (
            *(point[0].settings.get(name) for name in names),
            len(point),
            *([num_points] if searched else []),
            _mean(point, "test"),
            _mean(point, "ood"),
        )
        for point, num_points in best
    )
    titles: Mapping[str, Any] = runs[0].result.get("metrics", {}).get(metrics[0], {}) if runs else {}
    title = titles.get("title", metrics[0]) if len(metrics) == 1 else "main metric"
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
        rows=rows,
        note=f"{chosen}, the seen compositions; ood has held-out compositions and is only shown. Means over seeds",
    )


def _key(run: RunStatus, *, searched: bool) -> Key:
    return tuple((name, value) for name, value in run.settings.items() if searched or name not in run.searched)


def _group(runs: Sequence[RunStatus], *, searched: bool) -> dict[Key, list[RunStatus]]:
    """Runs that differ in their seed only, or, without `searched`, also in their hyperparameters."""
    groups: dict[Key, list[RunStatus]] = {}
    for run in runs:
        groups.setdefault(_key(run, searched=searched), []).append(run)
    return groups


def _merit(runs: Sequence[RunStatus]) -> float:
    """The mean score on `test`, so that higher is better."""
    mean = _mean(runs, "test")
    return float("-inf") if mean is None else mean.value if runs[0].higher_is_better else -mean.value


def _mean(runs: Sequence[RunStatus], split: str) -> Cell | None:
    return mean_cell([run.score(split) for run in runs])


def mean_cell(values: Sequence[Number | None]) -> Cell | None:
    """The mean over seeds, without an interval."""
    numbers = [value for value in values if value is not None]
    return Cell(value=fmean(numbers), values=tuple(numbers) if len(numbers) > 1 else ()) if numbers else None
