"""How far a sweep is, read from its folder. It needs neither torch nor the code of the runs, so it answers at once.

A run is finished if it has a result, failed if it has a failure, and running if a worker has touched its file in `.running`
within a minute; otherwise it is waiting, with the step of its last metrics if it was interrupted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import FAILURE, METRICS, RESULT, RUNNING, read_file, require_regular
from recombine.foundation.tables import describe_settings

FORMAT = "recombine-sweep"
FORMAT_VERSION = 1
PLAN = "sweep.json"
SILENT_SECONDS = 60.0  # after which a worker counts as dead
MAX_STEPS = 2**63 - 1

State = Literal["finished", "failed", "running", "waiting"]
STATES: tuple[State, ...] = ("running", "finished", "failed", "waiting")


class PlannedRun(TypedDict):
    """A run in `sweep.json`."""

    run: str  # the name of its directory
    settings: dict[str, str | int | float | bool | None]
    searched: list[str]
    seed: int
    steps: int
    metric: str
    higher_is_better: bool


class PlanFile(TypedDict):
    """`sweep.json`."""

    source: str
    runs: list[PlannedRun]


class Shown(TypedDict):
    """Of a score or of a metric in `result.json`, what a status shows."""

    value: NotRequired[float]
    title: NotRequired[str]


class Result(TypedDict):
    """Of `result.json`, what a status relies on."""

    seconds: float
    scores: dict[str, dict[str, Shown]]
    metrics: dict[str, Shown]


class Progress(TypedDict):
    """Of a line of `metrics.jsonl`, what a status relies on."""

    step: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run of a sweep."""

    run: str
    settings: Mapping[str, Any]
    seed: int
    searched: tuple[str, ...]
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
        self.results: dict[str, tuple[int, Mapping[str, Any]]] = {}

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
        known = {name: entry[name] for name in ("run", "settings", "seed", "steps", "metric", "higher_is_better")}
        known["searched"] = tuple(entry["searched"])
        running = entry["run"] in alive
        result = None if running else self._read_result(path)
        if result is not None:
            seconds = float(result.get("seconds", 0))
            return RunStatus(**known, state="finished", step=entry["steps"], seconds=seconds, result=result)
        step, seconds = _read_progress(path / METRICS)
        failure = None if running else read_json(path / FAILURE)
        state: State = "running" if running else "waiting" if failure is None else "failed"
        error = "" if failure is None else str(failure.get("error"))
        return RunStatus(**known, state=state, step=step, seconds=seconds, error=error)

    def _read_result(self, path: Path) -> Mapping[str, Any] | None:
        try:
            changed = (path / RESULT).stat().st_mtime_ns
        except OSError:
            return None
        if path.name not in self.results or self.results[path.name][0] != changed:
            self.results[path.name] = changed, _without_sums(_read_result(path / RESULT))
        return self.results[path.name][1]


def read_plan(folder: Path) -> dict[str, Any]:
    """The list of runs that `recombine sweep` left in its folder."""
    plan = read_json(folder / PLAN)
    if plan is None or plan.get("format") != FORMAT or not plan.get("runs"):
        raise InputError(
            f"{folder} is not the folder of a sweep: expected one with a {PLAN} that `recombine sweep` wrote"
        )
    if plan.get("format_version") != FORMAT_VERSION:
        raise InputError(f"{folder / PLAN} has version {plan.get('format_version')!r}: expected {FORMAT_VERSION}")
    fault = find_schema_error(plan, PlanFile) or next(filter(None, map(_find_fault_of_run, plan["runs"])), None)
    if fault is not None:
        raise InputError(f"{folder / PLAN} is damaged: {fault}")
    return plan


def _find_fault_of_run(entry: PlannedRun) -> str | None:
    """A name that leads out of the folder, or steps beyond any training."""
    if not entry["run"].isprintable() or Path(entry["run"]).name != entry["run"]:
        return f"run is {entry['run'][:40]!r}: expected the name of a folder"
    if not 0 <= entry["steps"] <= MAX_STEPS:
        return f"steps is {str(entry['steps'])[:40]}: expected a number from 0 to {MAX_STEPS}"
    return None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if there is none."""
    try:
        value = json.loads(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected JSON") from None
    return value if isinstance(value, dict) else None


def _read_result(path: Path) -> dict[str, Any]:
    result = read_json(path) or {}
    fault = find_schema_error(result, Result, complete=False)
    if fault is not None:
        raise InputError(f"{path} is damaged: {fault}")
    return result


def _without_sums(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("composition_sums", "baselines")}


def _list_alive(folder: Path) -> set[str]:
    """The runs whose workers have given a sign of life."""
    alive = set()
    try:
        for entry in os.scandir(folder):
            if entry.name.endswith(".json") and time.time() - entry.stat().st_mtime < SILENT_SECONDS:
                alive.add(entry.name.removesuffix(".json"))
    except OSError:  # no worker has started, or one has just ended
        pass
    return alive


def _read_progress(path: Path) -> tuple[int, float]:
    """Step and seconds of the last whole line of a run's metrics."""
    try:
        require_regular(path)
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            lines: Sequence[bytes] = file.read().splitlines()
    except OSError:
        return 0, 0.0
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if find_schema_error(row, Progress) is None and row["step"] <= MAX_STEPS:
            return row["step"], float(row["seconds"])
    return 0, 0.0
