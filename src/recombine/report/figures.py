"""Pictures of runs for the page, as Plotly dictionaries.

A colour in a Plotly dictionary is the name of a CSS variable, such as `var(--ink)`. The page looks it up when it draws, so
every picture follows the reader's colour scheme and no figure is stored twice.

Pictures of what happens inside networks, as Plotly dictionaries (see `figures` for their colours).

Pictures of swapped codes, as Plotly dictionaries (see `figures` for their colours).
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from recombine.inside.result import DECODER_TITLES
from recombine.report.findings import Change, Decoded, Found
from recombine.report.read import Curve, ReportRun, Shown
from recombine.tasks.base import Task
from recombine.tasks.view import LIGHT_PALETTE
from recombine.training.schema import Json

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


KIND_TITLES = {"codes": "Latent codes", "residual": "Residual stream", "hidden": "Hidden activations", "site": "Sites"}
SPLIT_WORDS = {"test": "seen", "ood": "held-out"}
CHANGE_WORDS = {"zero": "zero", "mean": "mean", "swap": "another’s"}
MAX_NUMBERED = 32  # heads
DIVERGING = [[place, f"var(--diverging-{number})"] for number, place in enumerate((0.0, 0.25, 0.5, 0.75, 1.0))]


def decodability_figure(found: Found[list[Decoded]], metric: str, kind: str) -> Figure:
    """A score over layers: held-out compositions filled, seen ones open; uninformed decoders are dotted."""
    traces: list[Figure] = []
    lowest = 0.0
    for run, sites in found:
        here = [site for site in sites if site.kind == kind and metric in site.scores]
        layers = [site.layer for site in here]
        values = {name: [site.scores[metric][name] for site in here] for name in DECODER_STYLES}
        lowest = min([lowest, *(value for value in values["ood"] + values["id"] if value is not None)])
        for name, style in DECODER_STYLES.items():
            traces.append(_decoder_trace(run, layers, values[name], style))
    y = {"range": [max(lowest, -1.0) - 0.04, 1.04], "title": {"text": DECODER_TITLES[metric]}}
    axis = {"type": "category"} if kind == "site" else {"dtick": 1, "range": _layer_range(found, kind)}
    return make_figure(traces, height=300, x_title="" if kind == "site" else "layer", y=y, x=axis, hovermode="closest")


DECODER_STYLES: dict[str, Figure] = {
    "majority": {"words": "majority", "dash": "solid", "width": 1, "mode": "lines", "color": "var(--ink-faint)"},
    "untrained": {"words": "untrained", "dash": "dot", "width": 1, "mode": "markers", "symbol": "x-thin-open"},
    "control": {"words": "shuffled labels", "dash": "dot", "width": 1.5, "mode": "lines", "opacity": 0.75},
    "id": {"words": "seen", "dash": "4px,3px", "width": 1.5, "mode": "lines+markers", "symbol": "circle-open"},
    "ood": {"words": "held-out", "dash": None, "width": 2.5, "mode": "lines+markers", "symbol": "circle"},
}


def _decoder_trace(run: ReportRun, layers: Sequence[int | str], values: list[float | None], style: Figure) -> Figure:
    colour = style.get("color", colour_of(run))
    return {
        "x": list(layers),
        "y": values,
        "meta": {"series": run.series},
        "mode": style["mode"],
        "opacity": style.get("opacity", 1.0),
        "line": {"color": colour, "width": style["width"], "dash": style["dash"] or choose_dash(run)},
        "marker": {
            "color": colour,
            "symbol": style.get("symbol", "circle"),
            "size": 9,
            "line": {"width": 2, "color": colour},
        },
        "hovertemplate": f"{plain(run.label)}, {style['words']}<br><b>%{{y:.3f}}</b><extra></extra>",
    }


def _layer_range(found: Found[list[Decoded]], kind: str) -> list[float]:
    layers = [site.layer for _, sites in found for site in sites if site.kind == kind and isinstance(site.layer, int)]
    return [min(layers) - 0.3, max(layers) + 0.3]


def similarity_figure(modules: Sequence[str], matrix: list[list[float | None]]) -> Figure:
    """A square of cosines, the first module in the upper left corner."""
    names = [plain(name) for name in modules]
    numbers = [str(number + 1) for number in range(len(names))]
    trace = {
        "type": "heatmap",
        "z": matrix,
        "zmin": -1,
        "zmax": 1,
        "colorscale": DIVERGING,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:.2f}" if len(names) <= 12 else "",
        "textfont": {"size": 11},
        "customdata": [[f"{a}<br>{b}" for b in names] for a in names],
        "hovertemplate": "%{customdata}<br>cosine <b>%{z:.3f}</b><extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 0.6, "tickvals": [-1, 0, 1], "xpad": 4},
    }
    places = list(range(len(names)))
    rows = [f"{name}  {number}" for number, name in zip(numbers, names, strict=True)]
    y = {"autorange": "reversed", "tickvals": places, "ticktext": rows, "showgrid": False, "fixedrange": True}
    x = {"tickvals": places, "ticktext": numbers, "showgrid": False, "side": "top", "tickangle": 0, "fixedrange": True}
    height = 90 + 36 * len(names)
    return make_figure([trace], height=height, y=y | {"tickfont": {"size": 12}}, x=x, hovermode="closest")


def layers_figure(run: ReportRun, ablations: Json) -> Figure:
    changes: list[Change] = ablations["layers"]
    return _changes_figure(
        run, ablations["metric"], changes, [CHANGE_WORDS.get(change.kind, change.kind) for change in changes]
    )


def heads_figure(run: ReportRun, ablations: Json, kind: str) -> Figure:
    changes = [change for change in ablations["heads"] if change.kind == kind]
    return _changes_figure(run, ablations["metric"], changes, number_heads(changes))


def number_heads(changes: Sequence[Change]) -> list[str]:
    """The number of each head; with many heads only every fourth, so that labels do not overlap."""
    step = 1 if len(changes) <= MAX_NUMBERED else 4
    return ["" if change.head is None or change.head % step else str(change.head) for change in changes]


def _changes_figure(run: ReportRun, metric: str, changes: Sequence[Change], ticks: Sequence[str]) -> Figure:
    """The change of the score with its interval, side by side, a gap between layers."""
    layers = sorted({change.layer for change in changes})
    places = [number + 0.8 * layers.index(change.layer) for number, change in enumerate(changes)]
    traces = [_changes_trace(run, changes, places, split) for split in SPLIT_WORDS]
    middles = {
        layer: [x for x, change in zip(places, changes, strict=True) if change.layer == layer] for layer in layers
    }
    labels = [
        make_annotation(
            f"layer {layer}", sum(xs) / len(xs), 1.0, color="var(--ink-soft)", yref="paper", yshift=12, xanchor="center"
        )
        for layer, xs in middles.items()
    ]
    x = {"tickvals": places, "ticktext": [plain(tick) for tick in ticks], "showgrid": False, "zeroline": False}
    y: Figure = {"title": {"text": f"change of {metric_title(metric)}"}, "rangemode": "tozero"}
    y |= {"zeroline": True, "zerolinecolor": "var(--ink-faint)"}
    margin = {"l": 8, "r": 8, "t": 28, "b": 8}
    return make_figure(traces, height=320, y=y, x=x, annotations=labels, margin=margin)


def _changes_trace(run: ReportRun, changes: Sequence[Change], places: Sequence[float], split: str) -> Figure:
    shift, symbol = {"test": (-0.14, "circle-open"), "ood": (0.14, "circle")}[split]
    values = [change.splits.get(split, (float("nan"),) * 3) for change in changes]
    error = {
        "array": [high - change for change, _, high in values],
        "arrayminus": [change - low for change, low, _ in values],
        "color": colour_of(run),
        "thickness": 1.5,
        "width": 0,
    }
    where = [f"layer {change.layer}" + ("" if change.head is None else f", head {change.head}") for change in changes]
    return {
        "x": [place + shift for place in places],
        "y": [change for change, _, _ in values],
        "error_y": error,
        "mode": "markers",
        "marker": {"symbol": symbol, "size": 8, "color": colour_of(run), "line": {"width": 2, "color": colour_of(run)}},
        "text": [f"{at}, {SPLIT_WORDS[split]}" for at in where],
        "customdata": [[low, high] for _, low, high in values],
        "hovertemplate": "%{text}<br><b>%{y:.3f}</b> (%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
    }


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
