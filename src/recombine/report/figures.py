"""Pictures of runs for the page, as Plotly dictionaries.

A colour in a Plotly dictionary is the name of a CSS variable, such as `var(--ink)`. The page looks it up when it draws, so
every picture follows the reader's colour scheme and no figure is stored twice.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from recombine.drawing.palette import LIGHT_PALETTE
from recombine.report.groups import Shown
from recombine.report.runs import Curve, ReportRun
from recombine.tasks.base import Task

Figure = dict[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot")  # names of Plotly

SPLIT_TITLES = {"ood": "Held-out compositions", "test": "Seen compositions", "unknown": "Unseen modules"}
ROWS = {
    "ood": ("held out", "circle", -0.08),
    "test": ("seen", "circle-open", 0.24),
}  # split: tick, symbol, place in its run


def metric_title(metric: str, runs: Iterable[ReportRun] = ()) -> str:
    """What the tasks of these runs call a metric; without runs, its usual title."""
    return _join_titles(run.find_title("metrics", metric) for run in runs) or Task.metric(metric).title


def split_title(split: str, runs: Iterable[ReportRun] = ()) -> str:
    """What the tasks of these runs call a split; without runs, its usual title."""
    titles = _join_titles(run.find_title("splits", split) for run in runs)
    return titles[:1].upper() + titles[1:] or SPLIT_TITLES.get(split) or split.replace("_", " ")


def _join_titles(titles: Iterable[str | None]) -> str:
    return " / ".join(dict.fromkeys(title for title in titles if title))


def list_runs(shown: Sequence[Shown]) -> list[ReportRun]:
    """The runs themselves, and those of groups."""
    return [run for each in shown for run in ([each] if isinstance(each, ReportRun) else each.runs)]


def score_figure(runs: Sequence[Shown], metric: str) -> Figure:
    """Scores with their intervals, each on a track from chance to ceiling."""
    runs = [run for run in runs if any(run.score(split, metric) for split in ROWS)]
    tracks = [
        (score.chance, score.ceiling, number + ROWS[split][2])
        for number, run in enumerate(runs)
        for split in ROWS
        if (score := run.score(split, metric)) and score.chance is not None and score.ceiling is not None
    ]
    traces = [
        {
            "x": [x for chance, ceiling, _ in tracks for x in (chance, ceiling, None)],
            "y": [y for _, _, place in tracks for y in (place, place, None)],
            "mode": "lines+markers",
            "line": {"color": "var(--track)", "width": 2},
            "marker": {"color": "var(--ink-faint)", "symbol": "line-ns-open", "size": 11, "line": {"width": 1.5}},
            "hoverinfo": "skip",
        },
        *(_score_trace(run, number, metric) for number, run in enumerate(runs)),
    ]
    labels = [
        make_annotation(plain(run.label), 0.0, number - 0.36, xref="paper", xanchor="left", color=colour_of(run))
        for number, run in enumerate(runs)
    ]
    titles = _name_ends(*tracks[0][:2]) if tracks else []
    places = [(number + place, tick) for number in range(len(runs)) for tick, _, place in ROWS.values()]
    axis = {
        "range": [len(runs) - 0.5, -0.9],
        "tickvals": [place for place, _ in places],
        "ticktext": [tick for _, tick in places],
        "fixedrange": True,
        "showgrid": False,
    }
    title = plain(metric_title(metric, list_runs(runs)))
    return make_figure(traces, height=90 + 84 * len(runs), x_title=title, y=axis, annotations=labels + titles)


def _name_ends(chance: float, ceiling: float) -> list[Figure]:
    """Titles of the ends of a track, which point away from each other: wide intervals can make the track short."""
    sides = ("right", "left") if chance < ceiling else ("left", "right")
    ends = zip(("chance", "ceiling"), (chance, ceiling), sides, strict=True)
    return [make_annotation(name, x, -0.7, color="var(--ink-faint)", xanchor=side) for name, x, side in ends]


def _score_trace(run: Shown, number: int, metric: str) -> Figure:
    scores = {split: score for split in ROWS if (score := run.score(split, metric))}
    return {
        "x": [score.value for score in scores.values()],
        "y": [number + ROWS[split][2] for split in scores],
        "mode": "markers",
        "marker": {
            "color": colour_of(run),
            "symbol": [ROWS[split][1] for split in scores],
            "size": 11,
            "line": {"width": 2, "color": colour_of(run)},
        },
        "error_x": {
            "array": [score.high - score.value for score in scores.values()],
            "arrayminus": [score.value - score.low for score in scores.values()],
            "color": colour_of(run),
            "thickness": 2.5,
            "width": 0,
        },
        "text": [f"{plain(run.label)}, {split_title(split).lower()}" for split in scores],
        "hovertemplate": "%{text}<br><b>%{x:.3f}</b><extra></extra>",
    }


def loss_figure(runs: Sequence[ReportRun]) -> Figure:
    """Training loss over steps, both as written during training."""
    traces = [_curve_trace(run, run.loss_curve()) for run in runs]
    return make_figure(traces, height=320, x_title="step", y={"type": "log", "tickformat": "~g", "dtick": "D2"})


def curve_figure(runs: Sequence[ReportRun], split: str, metric: str) -> Figure:
    """Score on a split over steps. The axis shows the range where runs end; a double click shows all values."""
    traces = [_curve_trace(run, run.score_curve(split, metric)) for run in runs]
    scores = [score for run in runs if (score := run.score(split, metric))]
    lines = sorted({value for score in scores for value in (score.chance, score.ceiling) if value is not None})
    style = {"color": "var(--ink-faint)", "width": 1, "dash": "dot"}
    shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": style} for y in lines]
    return make_figure(traces, height=280, x_title="step", y={"range": score_range(runs, metric)}, shapes=shapes)


def _curve_trace(run: ReportRun, curve: Curve) -> Figure:
    steps, values = curve
    return {
        "x": steps,
        "y": values,
        "name": plain(run.label),
        "meta": {"series": run.series},
        "mode": "lines" if len(steps) > 40 else "lines+markers",
        "line": {"color": colour_of(run), "width": 2, "dash": choose_dash(run)},
        "marker": {"size": 5},
        "hovertemplate": "%{y:.4g}",
    }


def score_range(runs: Sequence[ReportRun], metric: str) -> list[float] | None:
    """From the lowest to the highest of chance, ceiling and the second half of every curve, the same for all splits."""
    values: list[float] = []
    for run in runs:
        for split in run.scores:
            curve = run.score_curve(split, metric)[1]
            values += curve[len(curve) // 2 :]
            if score := run.score(split, metric):
                values += [reference for reference in (score.chance, score.ceiling) if reference is not None]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    margin = 0.05 * (max(values) - min(values)) or 0.05
    return [min(values) - margin, max(values) + margin]


def make_figure(traces: list[Figure], *, height: int, x_title: str = "", y: Figure, **layout: Any) -> Figure:
    axis = {"gridcolor": "var(--line)", "zeroline": False, "linecolor": "var(--line)", "automargin": True}
    x = {"title": {"text": x_title, "standoff": 8}} | layout.pop("x", {})
    house = {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "font": {"family": "var(--font)", "size": 13, "color": "var(--ink-soft)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest" if "annotations" in layout else "x unified",
        "hoverlabel": {"bgcolor": "var(--surface)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        "xaxis": axis | x,
        "yaxis": axis | y,
    }
    return {"data": traces, "layout": house | layout}


def make_annotation(text: str, x: float, y: float, *, color: str, **more: Any) -> Figure:
    return {"text": text, "x": x, "y": y, "font": {"color": color}, "showarrow": False, "yanchor": "middle", **more}


def plain(text: str) -> str:
    """Escape text that a user wrote, because Plotly reads text as markup."""
    return html.escape(text)


def colour_of(run: Shown) -> str:
    return f"var(--series-{run.series % len(LIGHT_PALETTE)})"


def choose_dash(run: ReportRun, dashes: Sequence[str] = DASHES) -> str:
    """The dash pattern, which changes when the palette is used up."""
    return dashes[run.series // len(LIGHT_PALETTE) % len(dashes)]
