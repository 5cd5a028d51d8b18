"""What a user sees: tables of results, durations, and the progress of long work.

Numbers stay numbers in a `Table`; they become text only when it is printed. A value is text, a plain number, a `Cell` (a
number with its bounds or its error), or several named cells. Printing never truncates or breaks a number or a name: a table
that is too wide for the terminal is printed without its optional columns or, if that is not enough, stacked, one block of
lines per row. Output to a file or a pipe has the full width of the table.

Work that may take long reports its progress on standard error, with `track` or `measure_progress`. Nothing is shown until it
is turned on, by the command line or by `show_progress`. Work of less than two seconds stays silent. A terminal shows a bar
with an estimate of the time left; otherwise, as in the log of a job, a line is printed at intervals.
"""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from recombine.foundation.errors import escape_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Number = int | float
Format = Literal["number", "fixed", "plain", "scientific", "percent"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number with the bounds or the standard error that belong to it."""

    value: Number
    low: Number | None = None
    high: Number | None = None
    error: Number | None = None
    values: tuple[Number, ...] = ()  # what the number was computed from, such as one score per seed
    pair: tuple[Number, Number] | None = None  # shown instead of the bounds, such as the scores of two seeds

    def as_dict(self) -> dict[str, Any]:
        fields = {"value": self.value, "low": self.low, "high": self.high, "error": self.error}
        numbers = {name: _finite(value) for name, value in fields.items() if name == "value" or value is not None}
        return numbers | ({"values": [_finite(value) for value in self.values]} if self.values else {})


Value = str | int | float | bool | None | Cell | Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Column:
    """The name of a column, and how its numbers are written."""

    name: str
    format: Format = "number"
    digits: int = 3
    wrap: bool = False  # for sentences: names and numbers are never broken
    optional: bool = False  # left out where a terminal is too narrow for all columns


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled table. Columns that need no special format are given by name."""

    title: str
    columns: tuple[str | Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.formats)

    @property
    def formats(self) -> tuple[Column, ...]:
        return tuple(Column(name=column) if isinstance(column, str) else column for column in self.columns)

    def without_optional(self) -> Table:
        """The table without its optional columns; the note names them."""
        kept = [number for number, column in enumerate(self.formats) if not column.optional]
        left = ", ".join(column.name for column in self.formats if column.optional)
        return replace(
            self,
            columns=tuple(self.columns[number] for number in kept),
            rows=tuple(tuple(row[number] for number in kept) for row in self.rows),
            note=f"{self.note}\nA wider terminal also shows: {left}" if left else self.note,
        )

    def spelled_out(self) -> Table:
        """The table with a title, a note and names of columns that cannot command a terminal; so are the cells in `as_text`."""
        columns = tuple(replace(column, name=escape_controls(column.name)) for column in self.formats)
        return replace(
            self, title=escape_controls(self.title), note=escape_controls(self.note, keep="\n"), columns=columns
        )

    def as_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per row, ready for JSON."""
        return [dict(zip(self.names, map(_as_json, row), strict=True)) for row in self.rows]

    def as_text(self) -> list[list[str]]:
        """The text of every cell."""
        return [
            [escape_controls(format_value(value, column)) for value, column in zip(row, self.formats, strict=True)]
            for row in self.rows
        ]


def format_value(value: Value, column: Column) -> str:
    """A value as it is shown."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Cell):
        return _format_cell(value, column)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_cell(cell, column)}" for name, cell in value.items())
    return _format_float(value, column)


def format_number(value: Number | None, digits: int = 3) -> str:
    """A number with a fixed number of decimals, or two significant digits where rounding would give zero."""
    if value is None or math.isnan(value):
        return ""
    tiny = 0 < abs(value) < 10**-digits
    return (f"{value:.1e}" if tiny else f"{value:.{digits}f}").replace("-", "−")


def format_duration(seconds: float) -> str:
    """A duration in words: `45 s`, `12 min`, `3 h 20 min`, `4.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 60 / 24:.1f} days"


def _format_cell(cell: Cell, column: Column) -> str:
    text = _format_float(cell.value, column)
    if cell.error is not None:
        text += f" ± {_format_float(cell.error, column)}"
    if cell.pair is not None:
        text += f" ({_format_float(cell.pair[0], column)} and {_format_float(cell.pair[1], column)})"
    elif cell.low is not None and cell.high is not None:
        text += f" ({_format_float(cell.low, column)} … {_format_float(cell.high, column)})"
    return text


def _format_float(value: Number, column: Column) -> str:
    if math.isnan(value):
        return ""
    if column.format == "scientific":
        return f"{value:.1e}".replace("-", "−")
    if column.format == "fixed":
        return f"{value:.{column.digits}f}".replace("-", "−")
    if column.format == "plain":
        return f"{value:g}"
    if column.format == "percent":
        return f"{value:.0%}"
    return str(value) if isinstance(value, int) else format_number(value, column.digits)


def _as_json(value: Value) -> Any:
    if isinstance(value, Cell):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: cell.as_dict() for name, cell in value.items()}
    return _finite(value) if isinstance(value, float) else value


def _finite(value: Number | None) -> Number | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else None


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Settings in words: `model vanilla, trunk softmax`."""
    return ", ".join(f"{show_setting(name)} {show_setting(value)}" for name, value in settings.items())


def show_setting(value: Any) -> str:
    """The name or the value of a setting in words."""
    if isinstance(value, str):
        return value.replace("_", " ")
    return f"{value:g}" if isinstance(value, float) else str(value)


MAX_WIDTH = 10_000
MIN_WRAPPED_WIDTH = 32  # of a column of sentences, in characters


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table at the width it needs; on a terminal that is too narrow, without optional columns or stacked."""
    from rich.console import Console
    from rich.text import Text

    console, table = console or Console(), table.spelled_out()
    drawn, width = _measure(table, console)
    if width > console.width and not console.is_terminal:
        console = Console(file=console.file, width=width)
    elif width > console.width:
        shorter = table.without_optional()
        drawn, width = _measure(shorter, console)
        if width > console.width:
            console.print(Text(table.title, style="italic"), highlight=False)
            console.print(stack(table, console.width), highlight=False, markup=False, soft_wrap=True)
            return
        table = shorter
    console.print(Text(table.title, style="italic"), highlight=False)  # titles and notes may be wider than the table
    console.print(drawn, highlight=False)
    if table.note:
        console.print(Text(f"{table.note}\n", style="dim italic"), highlight=False)


def _measure(table: Table, console: Console) -> tuple[RichTable, int]:
    """The table as rich prints it, without its title and note, and the width that it needs."""
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD)
    rows = table.as_text()
    for number, column in enumerate(table.formats):
        longest = max(map(len, (column.name, *(row[number] for row in rows))))
        is_text = all(isinstance(row[number], str | None) for row in table.rows)
        drawn.add_column(
            Text(column.name),
            justify="left" if is_text else "right",
            no_wrap=not column.wrap,
            min_width=min(longest, MIN_WRAPPED_WIDTH) if column.wrap else longest,
        )
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn, Measurement.get(console, console.options.update(width=MAX_WIDTH), drawn).minimum


def stack(table: Table, width: int) -> str:
    """The table with a block of lines per row and a line per column that is not empty; sentences are wrapped."""
    indent = max(map(len, table.names))
    is_pair = len(table.names) == 2
    blocks = []
    for row in table.as_text():
        lines = []
        for name, text in zip(table.names, row, strict=True):
            before = f"  {name.rjust(indent)}  "
            if " " in text and width - len(before) >= MIN_WRAPPED_WIDTH:
                text = _wrap(text, width, initial_indent=before, subsequent_indent=" " * len(before))
            elif text:
                text = before + text
            lines += [text] if text else []
        blocks.append(f"  {row[0]}: {row[1]}" if is_pair else "\n".join(lines))
    note = [textwrap.fill(line, width) for line in table.note.splitlines()]
    return ("\n" if is_pair else "\n\n").join([*blocks, *note]) + "\n"


def print_text(text: str) -> None:
    """Print text, wrapped to the width of the terminal without breaking paths."""
    from rich.console import Console

    width = Console().width
    for line in text.split("\n"):
        print(_wrap(escape_controls(line.expandtabs()), width))


def _wrap(text: str, width: int, **indents: Any) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False, **indents)


Item = TypeVar("Item")
SILENT_SECONDS = 2.0


class Meter:
    """The progress of one piece of work: `done` of `total` units, counted from wherever it began."""

    def __init__(self, label: str, total: int | None, display: Display | None, done: int | None = 0) -> None:
        self.label, self.total, self.note = escape_controls(label), total, ""
        self.done = done or 0
        self._display = display
        self._begun = self._counted_from = display.now() if display else 0.0
        self._first = done  # None: known at the first update
        self.last_line: float | None = None
        self.bar: Any = None  # number of a bar on the terminal

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Report how much is done; `note` is shown next to it."""
        if self._display is None:
            return
        self.done, self.note, self.total = done, escape_controls(note), self.total if total is None else total
        if self._first is None:
            self._first, self._counted_from = done, self._display.now()
        self._display.refresh(self)

    @property
    def started(self) -> bool:
        """Whether the work has begun; with `done=None`, at the first update."""
        return self._first is not None

    @property
    def elapsed(self) -> float:
        return self._display.now() - self._begun if self._display else 0.0

    @property
    def time_left(self) -> str:
        """An estimate from the speed so far, in words."""
        finished = 0 if self._first is None else self.done - self._first
        if self._display is None or self.total is None or finished <= 0:
            return ""
        seconds = (self._display.now() - self._counted_from) / finished * (self.total - self.done)
        return f"{format_duration(max(0.0, seconds))} left"

    def describe(self) -> str:
        """One line: how much is done, the note and the time left."""
        share = "" if not self.total else f"/{self.total} ({100 * self.done / self.total:.0f} %)"
        return "  ".join(part for part in (f"{self.label}: {self.done}{share}", self.note, self.time_left) if part)


class Display:
    """Shows meters on standard error: as bars on a terminal, otherwise as lines."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.meters: list[Meter] = []
        self._bars: Any = None

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
        """Remove the bar of nested work; the outermost bar stays where it ended."""
        self.meters.remove(meter)
        if self._bars is None:
            return
        if self.meters and meter.bar is not None:
            self._bars.remove_task(meter.bar)
        elif not self.meters:
            with contextlib.suppress(OSError):
                self._bars.stop()
            self._bars = None

    def _draw(self, meter: Meter) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        if self._bars is None:
            label, note, left = (
                TextColumn(text, markup=False)
                for text in ("{task.description}", "{task.fields[note]}", "{task.fields[left]}")
            )
            self._bars = Progress(label, BarColumn(), MofNCompleteColumn(), note, left, console=Console(stderr=True))
            self._bars.start()
        fields = {"note": meter.note, "left": meter.time_left}
        if meter.bar is None:
            meter.bar = self._bars.add_task(meter.label, total=meter.total, **fields)
        self._bars.update(meter.bar, completed=meter.done, total=meter.total, **fields)


_display: Display | None = None


def turn_on() -> None:
    """Show progress from now on."""
    global _display
    _display = _display or Display()


@contextlib.contextmanager
def show_progress(wanted: bool = True, display: Display | None = None) -> Iterator[None]:
    """Show progress inside a `with` block or, unless `wanted`, hide it."""
    global _display
    before = _display
    _display = (display or before or Display()) if wanted else None
    try:
        yield
    finally:
        _display = before


@contextlib.contextmanager
def measure_progress(label: str, total: int | None = None, done: int | None = 0) -> Iterator[Meter]:
    """A meter for work inside a `with` block. With `done=None`, work is counted from the first update."""
    display = _display
    meter = Meter(label, total, display, done)
    if display is None:
        yield meter
        return
    display.meters.append(meter)
    try:
        yield meter
    finally:
        display.end(meter)


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over items and report progress after each; `total` is needed where `items` has no length."""
    with measure_progress(label, len(items) if total is None and isinstance(items, Sized) else total) as meter:
        for number, item in enumerate(items, start=1):
            yield item
            meter.update(number)


def _line_interval(elapsed: float) -> float:
    """Seconds between two lines: short at first, so that a log soon shows how long the work takes."""
    return 10.0 if elapsed < 60 else 60.0 if elapsed < 3600 else 300.0
