"""Tables of results. Numbers stay numbers in a table; they become text only when the table is shown.

A value is text, a plain number, a `Cell` (a number with its bounds or its error), or several named cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

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

    def as_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per row, ready for JSON."""
        return [dict(zip(self.names, map(_as_json, row), strict=True)) for row in self.rows]

    def as_text(self) -> list[list[str]]:
        """The text of every cell."""
        return [
            [format_value(value, column) for value, column in zip(row, self.formats, strict=True)] for row in self.rows
        ]


def tables_as_dict(tables: list[Table]) -> dict[str, Any]:
    """The rows of each table, by title."""
    return {table.title: table.as_dicts() for table in tables}


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
    """So many decimals, or two significant digits where rounding would leave nothing."""
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
    return (
        value.replace("_", " ") if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    )
