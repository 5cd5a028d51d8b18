"""Pictures of swapped codes, as Plotly dictionaries (see `figures` for their colours)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recombine.report.figures import Figure, make_figure, plain
from recombine.store import Json


def rules_figure(rows: Sequence[Json], what: str) -> Figure:
    """Which rule (or answer, by `what`) the answer follows: its own, the one whose codes were swapped in, or neither."""
    parts = {"other": "var(--follow-1)", "own": "var(--follow-0)", "neither": "var(--track)"}
    words = {"other": f"the swapped-in {what}", "own": f"its own {what}", "neither": "neither"}
    traces = [_bars(rows, part, parts[part], words[part]) for part in parts]
    traces[0] = _mark_interval(traces[0], rows, "other")
    reach = {"range": [0, 1.001], "tickformat": ".0%", "dtick": 0.25}
    return _bars_figure(traces, len(rows), reach, barmode="stack")


def functions_figure(rows: Sequence[Json], _: str) -> Figure:
    """How far the answer moves towards that of the function whose codes were swapped in."""
    values = [value for row in rows for value in (row["follows"], *row["interval"]) if value is not None]
    reach: dict[str, Any] = {"range": [min([0.0, *values]) - 0.02, max([1.0, *values]) + 0.01]}
    bars = _bars(rows, "follows", "var(--follow-1)", "follows the donor")
    return _bars_figure([_mark_interval(bars, rows, "follows")], len(rows), reach)


def by_rule_figure(matrix: Json) -> Figure:
    """How often the answer follows the swapped-in rule (column), by the puzzle's own (row)."""
    rows, columns = ([plain(name) for name in matrix[side]] for side in ("rows", "columns"))
    trace = {
        "type": "heatmap",
        "z": matrix["values"],
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "var(--surface)"], [1, "var(--follow-1)"]],
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:.0%}",
        "textfont": {"size": 11},
        "hoverongaps": False,
        "customdata": [[f"{row}, given {column}" for column in columns] for row in rows],
        "hovertemplate": "%{customdata}<br>follows <b>%{z:.3f}</b><extra></extra>",
        "showscale": False,
    }
    style: Figure = {"showgrid": False, "fixedrange": True, "tickfont": {"size": 12}}
    y = style | {"autorange": "reversed", "tickvals": list(range(len(rows))), "ticktext": rows}
    x = style | {"side": "top", "tickvals": list(range(len(columns))), "ticktext": columns, "tickangle": -45}
    x |= {"ticklabeloverflow": "allow"}
    margin = {"l": 8, "r": 64, "t": 8, "b": 8}
    return make_figure([trace], height=150 + 30 * len(rows), y=y, x=x, hovermode="closest", margin=margin)


def _bars(rows: Sequence[Json], column: str, colour: str, words: str) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "y": [row["words"] for row in rows],
        "x": [row[column] for row in rows],
        "marker": {"color": colour},
        "hovertemplate": f"%{{y}}<br>{words} <b>%{{x:.3f}}</b><extra></extra>",
    }


def _mark_interval(bars: Figure, rows: Sequence[Json], column: str) -> Figure:
    """The bars with the 95 % interval of their column."""
    reach = [[row[column] if end is None else end for end in row["interval"]] for row in rows]
    values = [row[column] or 0.0 for row in rows]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [(high or 0.0) - value for (_, high), value in zip(reach, values, strict=True)],
        "arrayminus": [value - (low or 0.0) for (low, _), value in zip(reach, values, strict=True)],
        "color": "var(--ink-soft)",
        "thickness": 1.5,
        "width": 3,
    }
    return bars | {"error_x": error}


def _bars_figure(traces: list[Figure], num_rows: int, x: Figure, **layout: Any) -> Figure:
    y = {"autorange": "reversed", "showgrid": False, "fixedrange": True, "ticksuffix": "  "}
    return make_figure(
        traces, height=70 + 28 * num_rows, y=y, x=x | {"fixedrange": True}, bargap=0.35, hovermode="closest", **layout
    )
