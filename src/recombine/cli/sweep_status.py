"""recombine sweep status DIR: how far a sweep is, from any terminal or machine that sees its folder. It needs no torch.

A sweep that is being trained shows the same on standard error: a live table in a terminal, lines elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from recombine.cli.main import Argument, Output, parse
from recombine.foundation.display import Column, Table, format_duration, format_number
from recombine.foundation.errors import InputError
from recombine.sweeps.status import STATES, RunStatus, SweepReader, SweepStatus, choose_best

if TYPE_CHECKING:
    from recombine.sweeps.engine import Outcome
    from recombine.sweeps.records import Record


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Output):
    """Show which runs of a sweep are running, finished, failed or waiting, and the best so far."""

    examples = ("recombine sweep status runs/widths", "recombine sweep status runs/widths --json")

    folder: Annotated[Path, Argument(metavar="DIR", positional=True)]
    """Folder of the sweep."""


def run(argv: list[str]) -> None:
    options = parse(StatusOptions, argv, prog="sweep status")
    status = SweepReader(options.folder).read()
    show_status(status, options)


def show_status(status: SweepStatus, options: Output, *closing: str) -> None:
    """Print the running and failed runs, the best of the grid and one line about all; or all of it as JSON."""
    best = choose_best(status)
    value: dict[str, Any] = {
        "source": status.source,
        **{state: status.count(state) for state in STATES},
        "seconds_left": status.seconds_left,
        "steps_per_second": status.steps_per_second,
        "best": best.as_dicts(),
        "runs": [
            {
                "run": run.run,
                "settings": dict(run.settings),
                "seed": run.seed,
                "state": run.state,
                "step": run.step,
                "steps": run.steps,
                "error": run.error or None,
                "test": run.score("test"),
                "ood": run.score("ood"),
            }
            for run in status.runs
        ],
    }
    tables = [*([best] if best.rows else []), *list_failed(status)]
    options.show(value, *tables, draw(status), *closing)


def list_failed(status: SweepStatus) -> list[Table]:
    rows = tuple((run.text, run.error, run.run) for run in status.select("failed"))
    columns = (Column(name="run", wrap=True), Column(name="error", wrap=True), "directory")
    note = f"the whole error is in failure.json of the directory; --retry trains {'it' if len(rows) == 1 else 'them'} again"
    return [Table(title="Failed", columns=columns, rows=rows, note=note)] if rows else []


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
            text = f"failed: {outcome.error}" if outcome.kind else self._describe_scores(record, outcome)
            self._print(f"{self.number}/{self.total} {record.text}: {text}")

    def _describe_scores(self, record: Record, outcome: Outcome) -> str:
        run = self.reader.read_run(outcome.key)
        metric = record.config.task.metric(run.metric).title
        scores = ", ".join(f"{split} {format_number(run.score(split))}" for split in ("test", "ood"))
        return f"{metric} {scores}; {run.seconds:.0f} s"

    def _print(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(Text(text), soft_wrap=True, highlight=False)

    def _keep_showing(self) -> None:
        while not self.ended.wait(REFRESH_SECONDS):
            try:
                if self.live.is_started:
                    self.live.update(Text(draw(self.reader.read())), refresh=True)
                elif time.monotonic() - self.last_line >= LINE_SECONDS:
                    self._print(summarise(self.reader.read()))
            except (InputError, OSError) as error:  # a file is being replaced, or the folder is not available
                print(f"recombine: {error}", file=sys.stderr)


def draw(status: SweepStatus) -> str:
    """A summary, and a line per run that is being trained."""
    running = status.select("running")
    lines = [f"  {run.text}  step {run.step:,}/{run.steps:,}  {format_speed(run)}" for run in running[:MAX_ROWS]]
    more = [f"  and {len(running) - MAX_ROWS} more"] if len(running) > MAX_ROWS else []
    return "\n".join([summarise(status), *lines, *more])


def format_speed(run: RunStatus) -> str:
    return f"{run.step / run.seconds:.1f}" if run.seconds else ""


def summarise(status: SweepStatus) -> str:
    """One line: how many runs are in which state, the speed, the time left and the best run so far."""
    counts = ", ".join(f"{status.count(state)} {state}" for state in ("running", "finished", "failed", "waiting"))
    parts = [f"{len(status.runs)} runs: {counts}"]
    if status.steps_per_second:
        parts.append(f"{status.steps_per_second:.0f} steps/s")
    if status.seconds_left:
        parts.append(f"{format_duration(status.seconds_left)} left")
    if status.best is not None:
        scores = f"test {format_number(status.best.score('test'))} (ood {format_number(status.best.score('ood'))})"
        parts.append(f"best on test so far: {scores}, {status.best.text}")
    return " · ".join(parts)
