"""Learning curves of finished or stored runs: one panel per value of a setting, one line per attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recombine.sweeps import Published, Setting, matches
from recombine.tasks import ATTENTION_COLOURS, canvas
from recombine_papers.base import Finished, Group
from recombine_papers.experiment import PaperExperiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"softmax": "softmax", "linear": "linear", "hyla": "HYLA"}


def draw_learning_curves(
    experiment: PaperExperiment,
    finished: Finished,
    path: Path,
    panels: Mapping[str, Mapping[str, Setting]],
    *,
    x: str = "step",
    per_step: int = 1,
) -> Path:
    """Held-out scores solid, trained ones dotted, the ceiling dashed, the published number as a mark on the right.

    A panel without runs is left out. The lines are evaluations on a few instances during training; the dots at the end
    are the final one, on many.
    """
    from matplotlib.ticker import MaxNLocator

    run = [group.settings for group in finished.groups]
    panels = {title: wanted for title, wanted in panels.items() if any(matches(settings, wanted) for settings in run)}
    with canvas(path, 3.6 * len(panels), 3.2) as figure:
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, settings) in zip(every, panels.items(), strict=True):
            groups = [group for group in finished.groups if matches(group.settings, settings)]
            for group in groups:
                _draw_group(axes, experiment, group, per_step)
            _draw_ceiling(axes, experiment, groups)
            axes.set(title=title, xlabel=x, xlim=(0, None))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.grid(alpha=0.25)
        every[0].set(ylabel=f"{experiment.metric.replace('_', ' ').replace('r2', 'R²')}", ylim=(0, 1.02))
        every[-1].legend(loc="best")
    return path


def _draw_group(axes: Axes, experiment: PaperExperiment, group: Group, per_step: int) -> None:
    """The mean over seeds of both splits, and the range over seeds of the held-out one."""
    attention = str(group.settings["attention"])
    colour = ATTENTION_COLOURS[attention]
    for split, style in ((experiment.split, "-"), ("test", ":")):
        steps, values = read_curves(group, split, experiment.metric)
        label = f"{NAMES[attention]} ({len(values)} seed{'s' * (len(values) > 1)})" if style == "-" else None
        axes.plot(steps * per_step, values.mean(axis=0), style, color=colour, label=label, linewidth=1.3)
        end = group.runs[0].result["steps"] * per_step
        axes.plot([end], [np.mean(group.scores(split, experiment.metric))], "o", color=colour, markersize=4)
        if style == "-" and len(values) > 1:
            low, high = values.min(axis=0), values.max(axis=0)
            axes.fill_between(steps * per_step, low, high, color=colour, alpha=0.15, linewidth=0)
    published: Published | None = group.published
    if published is not None:
        axes.plot([1.02], [published.value], "<", color=colour, transform=axes.get_yaxis_transform(), clip_on=False)


def read_curves(group: Group, split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and scores (seeds × steps) at the steps that all seeds have."""
    curves = [run.scores_by_step(split, metric) for run in group.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return np.array(steps), np.array([[curve[step] for step in steps] for curve in curves])


def _draw_ceiling(axes: Axes, experiment: PaperExperiment, groups: Sequence[Group]) -> None:
    """The highest score that any predictor can have, the mean over runs."""
    scores = [
        run.result["scores"].get(experiment.split, {}).get(experiment.metric, {}) for g in groups for run in g.runs
    ]
    ceilings = [score["ceiling"] for score in scores if score.get("ceiling") is not None]
    if ceilings:
        height, place = float(np.mean(ceilings)), axes.get_yaxis_transform()
        axes.axhline(height, color="0.4", linestyle="--", linewidth=1)
        axes.text(0, height, " ceiling", va="bottom", fontsize=7, color="0.4", transform=place)
