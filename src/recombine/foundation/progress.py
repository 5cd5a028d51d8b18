"""Progress of long work, on standard error.

Work that may take long says how far it is, with `track` or `measure_progress`. Nothing is shown until someone turns it on:
the command line does, and `show_progress` does for a while. Work of less than two seconds stays silent. On a terminal there
is a bar with an estimate of the time left; otherwise, as in the log of a job, a line every so often.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

Item = TypeVar("Item")
SILENT_SECONDS = 2.0


class Meter:
    """How far one piece of work is. `done` counts up to `total`, from wherever it began."""

    def __init__(self, label: str, total: int | None, display: Display | None, done: int | None = 0) -> None:
        self.label, self.total, self.note = label, total, ""
        self.done = done or 0
        self._display = display
        self._begun = self._counted_from = display.now() if display else 0.0
        self._first = done  # None: the first update says where the work began
        self.last_line: float | None = None
        self.bar: Any = None  # number of a bar on the terminal

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how much is done; `note` is shown next to it."""
        if self._display is None:
            return
        self.done, self.note, self.total = done, note, self.total if total is None else total
        if self._first is None:
            self._first, self._counted_from = done, self._display.now()
        self._display.refresh(self)

    @property
    def elapsed(self) -> float:
        return self._display.now() - self._begun if self._display else 0.0

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the speed so far."""
        finished = self.done - (self.done if self._first is None else self._first)
        if self._display is None or self.total is None or finished <= 0:
            return None
        return (self._display.now() - self._counted_from) / finished * (self.total - self.done)

    def describe(self) -> str:
        """One line: how far, what else, how long."""
        share = "" if not self.total else f"/{self.total} ({100 * self.done / self.total:.0f} %)"
        left = "" if self.seconds_left is None else f"{format_seconds(self.seconds_left)} left"
        return "  ".join(part for part in (f"{self.label}: {self.done}{share}", self.note, left) if part)


class Display:
    """Shows meters: as bars on a terminal, otherwise as lines."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._bars: Any = None
        self._open: list[Meter] = []

    def begin(self, meter: Meter) -> None:
        self._open.append(meter)

    def refresh(self, meter: Meter) -> None:
        if meter.elapsed < SILENT_SECONDS:
            return
        with contextlib.suppress(OSError):  # a full disk or a closed terminal must not end the work
            if sys.stderr.isatty():
                self._draw(meter)
            elif meter.last_line is None or self.now() - meter.last_line >= _line_interval(meter.elapsed):
                meter.last_line = self.now()
                print(meter.describe(), file=sys.stderr, flush=True)

    def end(self, meter: Meter) -> None:
        """Bars within others go away; the outermost stays where it ended."""
        self._open.remove(meter)
        if self._bars is not None and meter.bar is not None and self._open:
            self._bars.remove_task(meter.bar)
        if not self._open and self._bars is not None:
            with contextlib.suppress(OSError):
                self._bars.stop()
            self._bars = None

    def _draw(self, meter: Meter) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        if self._bars is None:
            texts = (TextColumn("{task.fields[note]}"), TextColumn("{task.fields[left]}"))
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                *texts,
                console=Console(stderr=True),
            )
            self._bars.start()
        left = meter.seconds_left
        fields = {"note": meter.note, "left": "" if left is None else f"{format_seconds(left)} left"}
        if meter.bar is None:
            meter.bar = self._bars.add_task(meter.label, total=meter.total, **fields)
        self._bars.update(meter.bar, completed=meter.done, total=meter.total, **fields)


_display: Display | None = None


def turn_on(display: Display | None = None) -> None:
    """Show progress from now on."""
    global _display
    _display = _display or display or Display()


@contextlib.contextmanager
def show_progress(wanted: bool = True, display: Display | None = None) -> Iterator[None]:
    """Show progress inside a `with` block, or do not."""
    global _display
    before = _display
    _display = (display or before or Display()) if wanted else None
    try:
        yield
    finally:
        _display = before


@contextlib.contextmanager
def measure_progress(label: str, total: int | None = None, done: int | None = 0) -> Iterator[Meter]:
    """A meter for work inside a `with` block. With `done=None`, the first update says where the work began."""
    display = _display
    meter = Meter(label, total, display, done)
    if display is None:
        yield meter
        return
    display.begin(meter)
    try:
        yield meter
    finally:
        display.end(meter)


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """The items, with progress after each of them; without `total`, there must be a known number of them."""
    if _display is None:
        yield from items
        return
    count = len(items) if total is None and isinstance(items, Sized) else total
    with measure_progress(label, count) as meter:
        for number, item in enumerate(items, start=1):
            yield item
            meter.update(number)


def format_seconds(seconds: float) -> str:
    """Hours, minutes and seconds, as in 1:02:03."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _line_interval(elapsed: float) -> float:
    """Seconds between two lines: often at first, so that a log says early how long it will take."""
    return 10.0 if elapsed < 60 else 60.0 if elapsed < 3600 else 300.0
