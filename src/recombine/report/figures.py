"""Pictures of runs: Plotly dictionaries for the page, matplotlib files for papers and slides.

A colour in a Plotly dictionary is the name of a CSS variable, such as `var(--ink)`. The page looks it up when it draws, so
every picture follows the reader's colour scheme and no figure is stored twice.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from recombine.report.html import ReportRun

Figure = dict[str, Any]
Curve = tuple[list[float], list[float]]

# Told apart by readers of every kind of colour vision (after Okabe and Ito), and dark or light enough for their background.
LIGHT_PALETTE = ("#0072b2", "#d55e00", "#00855f", "#b8578c", "#8c6a00", "#5f4bb6")
DARK_PALETTE = ("#56b4e9", "#f58549", "#2cc295", "#e7a3cb", "#e3bc4f", "#b7a6f2")
DASHES = ("solid", "dash", "dot", "dashdot")

METRIC_TITLES = {"r2": "R²", "r2_pooled": "R² pooled", "accuracy": "Accuracy"}
SPLIT_TITLES = {"ood": "Unseen combinations", "test": "Seen combinations", "unknown": "Unseen modules"}
ROWS = {
    "ood": ("unseen", "circle", -0.08),
    "test": ("seen", "circle-open", 0.24),
}  # split: tick, symbol, place in its run


def metric_title(metric: str) -> str:
    return METRIC_TITLES.get(metric, metric.replace("_", " "))


def split_title(split: str) -> str:
    return SPLIT_TITLES.get(split, split.replace("_", " "))


def score_figure(runs: Sequence[ReportRun], metric: str) -> Figure:
    """Scores and intervals of all runs, each on a track that reaches from its chance to its ceiling."""
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
        _annotation(_plain(run.label), 0, number - 0.36, xref="paper", xanchor="left", color=_colour(run))
        for number, run in enumerate(runs)
    ]
    ends = zip(("chance", "ceiling"), tracks[0][:2], strict=True) if tracks else ()
    titles = [_annotation(name, x, -0.36, color="var(--ink-faint)", xanchor="center") for name, x in ends]
    places = [(number + place, tick) for number in range(len(runs)) for tick, _, place in ROWS.values()]
    axis = {
        "range": [len(runs) - 0.5, -0.62],
        "tickvals": [place for place, _ in places],
        "ticktext": [tick for _, tick in places],
        "fixedrange": True,
    }
    return _figure(
        traces, height=70 + 84 * len(runs), x_title=metric_title(metric), y=axis, annotations=labels + titles
    )


def _score_trace(run: ReportRun, number: int, metric: str) -> Figure:
    scores = {split: score for split in ROWS if (score := run.score(split, metric))}
    return {
        "x": [score.value for score in scores.values()],
        "y": [number + ROWS[split][2] for split in scores],
        "mode": "markers",
        "marker": {
            "color": _colour(run),
            "symbol": [ROWS[split][1] for split in scores],
            "size": 11,
            "line": {"width": 2},
        },
        "error_x": {
            "array": [score.high - score.value for score in scores.values()],
            "arrayminus": [score.value - score.low for score in scores.values()],
            "color": _colour(run),
            "thickness": 2.5,
            "width": 0,
        },
        "text": [f"{_plain(run.label)}, {split_title(split).lower()}" for split in scores],
        "hovertemplate": "%{text}<br><b>%{x:.3f}</b><extra></extra>",
    }


def loss_figure(runs: Sequence[ReportRun]) -> Figure:
    """Training loss over steps, both as written during training."""
    traces = [_curve_trace(run, run.loss_curve()) for run in runs]
    return _figure(traces, height=320, x_title="step", y={"type": "log", "dtick": 1, "exponentformat": "power"})


def curve_figure(runs: Sequence[ReportRun], split: str, metric: str) -> Figure:
    """Score on a split over steps. The axis shows where runs end; what lies far below, early on, is a double click away."""
    traces = [_curve_trace(run, run.score_curve(split, metric)) for run in runs]
    return _figure(traces, height=280, x_title="step", y={"range": _score_range(runs, metric)})


def _curve_trace(run: ReportRun, curve: Curve) -> Figure:
    steps, values = curve
    return {
        "x": steps,
        "y": values,
        "name": _plain(run.label),
        "meta": {"series": run.series},
        "mode": "lines" if len(steps) > 40 else "lines+markers",
        "line": {"color": _colour(run), "width": 2, "dash": _dash(run)},
        "marker": {"size": 5},
        "hovertemplate": "%{y:.4g}",
    }


def _score_range(runs: Sequence[ReportRun], metric: str) -> list[float] | None:
    """From the lowest to the highest of chance, ceiling and the second half of every curve, the same for all splits."""
    values: list[float] = []
    for run in runs:
        for split in run.scores:
            curve = run.score_curve(split, metric)[1]
            values += curve[len(curve) // 2 :]
            if score := run.score(split, metric):
                values += [each for each in (score.chance, score.ceiling) if each is not None]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    margin = 0.05 * (max(values) - min(values)) or 0.05
    return [min(values) - margin, max(values) + margin]


def _figure(traces: list[Figure], *, height: int, x_title: str, y: Figure, **layout: Any) -> Figure:
    axis = {"gridcolor": "var(--line)", "zeroline": False, "linecolor": "var(--line)", "automargin": True}
    layout |= {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "font": {"family": "var(--font)", "size": 13, "color": "var(--ink-soft)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest" if "annotations" in layout else "x unified",
        "hoverlabel": {"bgcolor": "var(--surface)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        "xaxis": axis | {"title": {"text": x_title, "standoff": 8}},
        "yaxis": axis | y,
    }
    return {"data": traces, "layout": layout}


def _annotation(text: str, x: float, y: float, *, color: str, **more: Any) -> Figure:
    return {"text": text, "x": x, "y": y, "font": {"color": color}, "showarrow": False, "yanchor": "middle", **more}


def _plain(text: str) -> str:
    """Plotly reads text as markup; what a user wrote is none."""
    return html.escape(text)


def _colour(run: ReportRun) -> str:
    return f"var(--series-{run.series % len(LIGHT_PALETTE)})"


def _dash(run: ReportRun) -> str:
    return DASHES[run.series // len(LIGHT_PALETTE) % len(DASHES)]


def static_figures(runs: Sequence[ReportRun], metrics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The same pictures for print, as (file name, content): PNG and SVG, equal bytes for equal runs."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    style = {"svg.hashsalt": "recombine", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        pictures = {"loss": Canvas(figsize=(5, 3), layout="constrained")}
        axes = pictures["loss"].subplots()
        _draw_curves(axes, runs, lambda run: run.loss_curve(), y_title="training loss")
        axes.set_yscale("log")
        for metric in metrics:
            pictures[f"scores-{metric}"] = canvas = Canvas(figsize=(5, 1 + 0.45 * len(runs)), layout="constrained")
            _draw_scores(canvas.subplots(), runs, metric)
            splits = [split for split in SPLIT_TITLES if any(split in run.scores for run in runs)]
            canvas = Canvas(figsize=(0.5 + 2.6 * len(splits), 2.8), layout="constrained")
            for split, axes in zip(splits, canvas.subplots(1, len(splits), sharey=True, squeeze=False)[0], strict=True):
                _draw_curves(
                    axes, runs, lambda run, s=split, m=metric: run.score_curve(s, m), y_title=metric_title(metric)
                )
                axes.set(title=split_title(split), ylim=_score_range(runs, metric))
                axes.label_outer()
            pictures[f"curves-{metric}"] = canvas
        for name, canvas in pictures.items():
            for kind, more in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
                file = io.BytesIO()
                canvas.savefig(file, format=kind, **more)
                yield f"{name}.{kind}", file.getvalue()


def _draw_curves(axes: Axes, runs: Sequence[ReportRun], curve: Callable[[ReportRun], Curve], *, y_title: str) -> None:
    for run in runs:
        label = run.label.replace("$", r"\$")  # matplotlib would read a formula
        axes.plot(*curve(run), color=_colour_in_print(run), linestyle=_dash(run), label=label)
    axes.set(xlabel="step", ylabel=y_title)
    axes.grid(axis="y", color="#e3e5e4")
    axes.legend(frameon=False)


def _draw_scores(axes: Axes, runs: Sequence[ReportRun], metric: str) -> None:
    for number, run in enumerate(runs):
        for split, (_, symbol, place) in ROWS.items():
            score, y = run.score(split, metric), number + place
            if score is None:
                continue
            if score.chance is not None and score.ceiling is not None:
                axes.plot([score.chance, score.ceiling], [y, y], color="#c9cecd", marker="|", zorder=1)
            colour = _colour_in_print(run)
            axes.plot([score.low, score.high], [y, y], color=colour, linewidth=2)
            axes.plot(score.value, y, marker="o", color=colour, markerfacecolor="white" if "open" in symbol else colour)
    labels = [run.label.replace("$", r"\$") for run in runs]
    axes.set(xlabel=metric_title(metric), yticks=range(len(runs)), yticklabels=labels, ylim=(len(runs) - 0.4, -0.6))


def _colour_in_print(run: ReportRun) -> str:
    return LIGHT_PALETTE[run.series % len(LIGHT_PALETTE)]
