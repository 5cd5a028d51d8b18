"""Pictures of runs for papers and slides: PNG and SVG files by matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from recombine.drawing.canvas import METADATA, STYLE, escape_text, make_figure, render_figure
from recombine.drawing.palette import GRID, LIGHT_PALETTE, TRACK
from recombine.report.figures import (
    ROWS,
    SPLIT_TITLES,
    choose_dash,
    metric_title,
    score_range,
    split_title,
)
from recombine.report.printed.inside import inside_figures
from recombine.report.runs import Curve, ReportRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", ":", "-.")  # names of matplotlib


def static_figures(runs: Sequence[ReportRun], metrics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The pictures as (file name, content), in PNG and SVG; the same runs give the same bytes."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        pictures = {"loss": make_figure(5, 3)}
        axes = pictures["loss"].subplots()
        _draw_curves(axes, [(run, run.loss_curve()) for run in runs])
        axes.set(yscale="log", ylabel="training loss")
        splits = [split for split in SPLIT_TITLES if any(split in run.scores for run in runs)]
        for metric in metrics:
            canvas = pictures[f"scores-{metric}"] = make_figure(5, 1 + 0.45 * len(runs))
            _draw_scores(canvas.subplots(), runs, metric)
            canvas = pictures[f"curves-{metric}"] = make_figure(1 + 2.6 * len(splits), 2.8)
            for number, split in enumerate(splits, start=1):
                axes = canvas.add_subplot(1, len(splits), number)
                _draw_curves(axes, [(run, run.score_curve(split, metric)) for run in runs])
                axes.set(title=split_title(split), ylabel=_print_metric(metric, runs), ylim=score_range(runs, metric))
        pictures |= inside_figures(runs, lambda run: (_print_colour(run), _print_label(run)))
        for name, canvas in pictures.items():
            for suffix in METADATA:
                yield f"{re.sub(r'[^A-Za-z0-9_-]', '-', name)}{suffix}", render_figure(canvas, suffix)


def _draw_curves(axes: Axes, curves: Sequence[tuple[ReportRun, Curve]]) -> None:
    for run, (steps, values) in curves:
        axes.plot(steps, values, color=_print_colour(run), linestyle=choose_dash(run, DASHES), label=_print_label(run))
    axes.set_xlabel("step")
    axes.grid(axis="y", color=GRID)
    if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        axes.legend(frameon=False)


def _draw_scores(axes: Axes, runs: Sequence[ReportRun], metric: str) -> None:
    for number, run in enumerate(runs):
        colour = _print_colour(run)
        for split, (_, symbol, place) in ROWS.items():
            score, y = run.score(split, metric), number + place
            if score is None:
                continue
            if score.chance is not None and score.ceiling is not None:
                axes.plot([score.chance, score.ceiling], [y, y], color=TRACK, marker="|", zorder=1)
            axes.plot([score.low, score.high], [y, y], color=colour, linewidth=2)
            axes.plot(score.value, y, marker="o", color=colour, markerfacecolor="white" if "open" in symbol else colour)
    labels = [_print_label(run) for run in runs]
    axes.set_title("● held-out   ○ seen compositions", fontsize="medium")
    axes.set(
        xlabel=_print_metric(metric, runs), yticks=range(len(runs)), yticklabels=labels, ylim=(len(runs) - 0.4, -0.6)
    )


def _print_colour(run: ReportRun) -> str:
    return LIGHT_PALETTE[run.series % len(LIGHT_PALETTE)]


def _print_label(run: ReportRun) -> str:
    return escape_text(run.label)


def _print_metric(metric: str, runs: Sequence[ReportRun]) -> str:
    return escape_text(metric_title(metric, runs))
