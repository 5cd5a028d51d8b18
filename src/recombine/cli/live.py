"""The progress of a sweep on standard error: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from recombine.foundation.errors import InputError
from recombine.foundation.tables import format_duration, format_number
from recombine.sweeps.status import RunStatus, SweepReader, SweepStatus

if TYPE_CHECKING:
    from recombine.sweeps.engine import Outcome
    from recombine.sweeps.records import Record

REFRESH_SECONDS = 1.0
LINE_SECONDS = 60.0  # between two lines without a terminal
MAX_ROWS = 12  # running runs that are shown


class SweepDisplay:
    """Shows how far a sweep is while it runs."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()
        self.live.stop()

    def tell(self, record: Record, outcome: Outcome) -> None:
        """A run has ended."""
        self.number += 1
        if self.quiet:
            return
        text = f"{self.number}/{self.total} {record.text}: "
        text += f"failed: {outcome.error}" if outcome.kind else self._describe_scores(record, outcome)
        self._print(text)

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
                    self.live.update(draw(self.reader.read()), refresh=True)
                elif time.monotonic() - self.last_line >= LINE_SECONDS:
                    self._print(summarise(self.reader.read()))
            except (InputError, OSError) as error:  # a file is being replaced, or the folder is away for a moment
                print(f"recombine: {error}", file=sys.stderr)


def draw(status: SweepStatus) -> Group:
    """The live table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "step", "steps/s"):
        table.add_column(name, justify="left" if name == "run" else "right")
    running = status.select("running")
    for run in running[:MAX_ROWS]:
        table.add_row(run.text, f"{run.step:,}/{run.steps:,}", format_speed(run))
    more = [Text(f"and {len(running) - MAX_ROWS} more")] if len(running) > MAX_ROWS else []
    return Group(Text(summarise(status)), *([table] if running else []), *more)


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
