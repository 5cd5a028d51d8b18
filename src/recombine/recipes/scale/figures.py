"""The figure of the scale experiments: width, training compositions, supports, and decodability against success."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from recombine.drawing.canvas import canvas
from recombine.drawing.palette import LIGHT_PALETTE
from recombine.recipes.experiment import Finished, Group, show_setting
from recombine.recipes.scale.tables import METRIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = *LIGHT_PALETTE[:2], "#8a8a8a"
SPLITS = {"ood": (BLUE, "held-out compositions"), "test": (GREY, "trained compositions")}


def draw_scale(finished: Finished, folder: Path) -> list[Path]:
    """Four panels: R² against width, compositions and support, and R² against decodability."""
    widths, compositions, supports = (
        [group for group in finished.groups if name in group.settings] for name in ("width", "compositions", "support")
    )
    path = folder / "scale.png"
    with canvas(path, 9.5, 7) as figure:
        (width, composition), (support, decodability) = figure.subplots(2, 2)
        _draw_curve(width, widths, "width")
        width.set(xscale="log", xlabel="width", title="width")
        sizes = [int(group.settings["width"]) for group in widths]
        width.set_xticks(sizes, map(str, sizes))
        width.minorticks_off()
        _draw_curve(composition, compositions, "compositions")
        composition.set(xlabel="training compositions", title="training compositions")
        composition.legend(loc="lower right")
        _draw_supports(support, supports)
        _draw_decodability(decodability, finished)
    return [path]


def _draw_curve(axes: Axes, groups: Sequence[Group], name: str) -> None:
    """R² of both splits against a setting, with standard errors over seeds."""
    positions = [float(group.settings[name]) for group in groups]
    for split, (colour, label) in SPLITS.items():
        values = [group.scores(split, METRIC) for group in groups]
        errors = [stdev(seeds) / len(seeds) ** 0.5 if len(seeds) > 1 else 0.0 for seeds in values]
        axes.errorbar(positions, list(map(fmean, values)), errors, fmt="o-", color=colour, label=label, capsize=3)
    axes.set(ylabel="R² pooled", ylim=(None, 1.02))


def _draw_supports(axes: Axes, groups: Sequence[Group]) -> None:
    """A point per seed and a bar at their mean."""
    for split, (colour, _) in SPLITS.items():
        for row, group in enumerate(groups):
            values = group.scores(split, METRIC)
            axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.5, markersize=4)
            axes.plot(fmean(values), row, "|", color=colour, markersize=16, markeredgewidth=3)
    axes.set_yticks(range(len(groups)), [show_setting(group.settings["support"]) for group in groups])
    axes.invert_yaxis()
    axes.set(xlabel="R² pooled", title="support")


def _draw_decodability(axes: Axes, finished: Finished) -> None:
    """A point per run; those whose training compositions leave modules uncovered or unconnected stand out."""
    names = {True: "covered and connected", False: "not covered or not connected"}
    for run in {run.run.path: run for run in finished.runs}.values():
        fair = bool(run.certificate["connected"] and run.certificate["covered"])
        decodable = run.measured["z_held_out"]
        colour, marker = (BLUE, "o") if fair else (ORANGE, "x")
        axes.plot(
            decodable, run.score("ood", METRIC) or 0.0, marker, color=colour, markersize=5, label=names.pop(fair, None)
        )
    axes.set(xlabel="R² of modules, last hidden layer, held out", ylabel="R² pooled, held out")
    axes.set_title("decodability")
    axes.legend()
