"""How far a sweep is, read from its folder, which needs neither torch nor the code of the runs; and its live display.

A run is finished if it has a result, failed if it has a failure or a damaged file, and running if a worker has touched its file
in `.running` within a minute; otherwise it is waiting, with the step of its last metrics if it was interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from recombine.foundation.display import describe_settings, format_duration, format_number
from recombine.foundation.errors import InputError, escape_controls, find_schema_error
from recombine.foundation.files import FAILURE, METRICS, RESULT, RUNNING, open_file, parse_json, read_json
from recombine.training.directory import RunDirectory
from recombine.training.schema import MetricsRow

if TYPE_CHECKING:
    from recombine.sweeps.engine import Outcome
    from recombine.sweeps.records import Record

FORMAT = "recombine-sweep"
FORMAT_VERSION = 1
PLAN = "sweep.json"
HEARTBEAT_TIMEOUT = 60.0  # seconds after which a silent worker counts as dead
LAST_BYTES = 16_384  # of the metrics: several rows

State = Literal["finished", "failed", "running", "waiting"]
STATES: tuple[State, ...] = ("running", "finished", "failed", "waiting")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run in `sweep.json`."""

    run: Annotated[str, msgspec.Meta(pattern="^[-.A-Za-z0-9_]+$")]  # the name of its directory
    settings: dict[str, str | int | float | bool | None]
    searched: Sequence[str]
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
class RunStatus(PlannedRun):
    """One run of a sweep."""

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
        return len(self.select(state))

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

    def _read_run(self, entry: dict[str, Any], alive: set[str]) -> RunStatus:
        run = RunDirectory(self.folder / entry["run"])
        try:
            require_own(run.path)
            result = self._read_result(run)
            if result is not None:
                seconds = float(result.get("seconds", 0))
                return RunStatus(**entry, state="finished", step=entry["steps"], seconds=seconds, result=result)
            step, seconds = _read_progress(run.path)
            is_alive, error = entry["run"] in alive, None
            if not is_alive and (run.path / FAILURE).exists():
                error = str(run.read_json(FAILURE).get("error"))
        except InputError as damage:  # reported for this run; the others are read
            return RunStatus(**entry, state="failed", error=str(damage))
        state: State = "running" if is_alive else "waiting" if error is None else "failed"
        return RunStatus(**entry, state=state, step=step, seconds=seconds, error=error or "")

    def _read_result(self, run: RunDirectory) -> Mapping[str, Any] | None:
        try:
            changed = (run.path / RESULT).stat().st_mtime_ns
        except OSError:
            return None
        if self.results.get(run.path, (0, {}))[0] != changed:
            result = run.read_json(RESULT)
            large = ("composition_sums", "baselines")
            self.results[run.path] = changed, {name: value for name, value in result.items() if name not in large}
        return self.results[run.path][1]


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


def require_own(path: Path) -> None:
    """Refuse a link in the place of a folder that belongs to a sweep: it could lead anywhere."""
    if path.is_symlink():
        raise InputError(f"{path} is a link: expected a folder of the sweep itself")


def _list_alive(folder: Path) -> set[str]:
    """The runs whose workers have given a sign of life."""
    alive = set()
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # the worker has just ended
            if abs(time.time() - path.stat().st_mtime) < HEARTBEAT_TIMEOUT:  # one dated tomorrow is not alive
                alive.add(path.stem)
    return alive


def _read_progress(path: Path) -> tuple[int, float]:
    """Step and seconds of the last whole line of a run's metrics."""
    try:
        with open_file(path / METRICS) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0, 0.0
    for line in reversed(lines):
        with contextlib.suppress(InputError):  # a row that is being written
            row = parse_json(line, MetricsRow, METRICS)
            return row["step"], float(row.get("seconds", 0))
    return 0, 0.0


REFRESH_SECONDS = 1.0
LINE_SECONDS = 60.0  # between two lines without a terminal
MAX_ROWS = 12  # runs that are shown while they are trained


class SweepDisplay:
    """Shows the status of a sweep on standard error while it runs."""

    def __init__(self, reader: SweepReader, *, total: int, done: int, quiet: bool) -> None:
        self.reader, self.total, self.number, self.quiet = reader, total, done, quiet
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._keep_showing, daemon=True)
        self.last_line = time.monotonic()

    def __enter__(self) -> SweepDisplay:
        if not self.quiet:
            if self.console.is_terminal:
                self.live.start()
            self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()
        self.live.stop()

    def report(self, record: Record, outcome: Outcome) -> None:
        """Print that a run has ended, with its scores or its error."""
        self.number += 1
        if not self.quiet:
            text = f"failed: {outcome.error}"
            if outcome.kind is None:
                run = next(run for run in self.reader.read().runs if run.run == outcome.key)
                scores = ", ".join(f"{split} {format_number(run.score(split))}" for split in ("test", "ood"))
                text = f"{record.config.task.metric(run.metric).title} {scores}; {run.seconds:.0f} s"
            self._print(f"{self.number}/{self.total} {record.text}: {text}")

    def _print(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(Text(escape_controls(text)), soft_wrap=True, highlight=False)

    def _keep_showing(self) -> None:
        while not self.ended.wait(REFRESH_SECONDS):
            try:
                if self.live.is_started:
                    self.live.update(Text(escape_controls(draw(self.reader.read()), keep="\n")), refresh=True)
                elif time.monotonic() - self.last_line >= LINE_SECONDS:
                    self._print(summarise(self.reader.read()))
            except (InputError, OSError) as error:  # a file is being replaced, or the folder is not available
                print(f"recombine: {escape_controls(str(error))}", file=sys.stderr)


def draw(status: SweepStatus) -> str:
    """A summary, and a line per run that is being trained."""
    running = status.select("running")
    lines = [
        f"  {run.text}  step {run.step:,}/{run.steps:,}  " + (f"{run.step / run.seconds:.1f}" if run.seconds else "")
        for run in running[:MAX_ROWS]
    ]
    more = [f"  and {len(running) - MAX_ROWS} more"] if len(running) > MAX_ROWS else []
    return "\n".join([summarise(status), *lines, *more])


def summarise(status: SweepStatus) -> str:
    """One line: how many runs are in which state, the speed, the time left and the best run so far."""
    counts = ", ".join(f"{status.count(state)} {state}" for state in STATES)
    parts = [f"{len(status.runs)} runs: {counts}"]
    if status.steps_per_second:
        parts.append(f"{status.steps_per_second:.0f} steps/s")
    if status.seconds_left:
        parts.append(f"{format_duration(status.seconds_left)} left")
    if status.best is not None:
        scores = f"test {format_number(status.best.score('test'))} (ood {format_number(status.best.score('ood'))})"
        parts.append(f"best on test so far: {scores}, {status.best.text}")
    return " · ".join(parts)
