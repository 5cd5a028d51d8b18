"""Tables and the figure of the scale experiments: scores over seeds, and whether decodability is correlated with success.

Decodability is the R² of ridge regression from the activations of a layer to the strengths of the modules, fitted on half of
the tasks of training compositions and scored on the other half and on held-out compositions (arXiv 2507.07207).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from recombine.foundation import Cell, Column, Table, Value, show_setting
from recombine.sweeps import mean_cell
from recombine.tasks import LIGHT_PALETTE, canvas
from recombine_papers.base import MINUTES, Finished, Group, cell, explain_intervals, spread, tabulate_groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC = "r2_pooled"
SPLITS = {"test": "R² trained", "ood": "R² held out", "unknown": "R² more at once"}


def tabulate_seeds(finished: Finished) -> Table:
    """Means over seeds, one row per setting."""

    def list_cells(group: Group) -> list[Value]:
        certificates = [run.certificate for run in group.runs]
        return [
            len(group.runs),
            max(run.result["num_parameters"] for run in group.runs),
            spread([certificate["num_train"] for certificate in certificates]),
            _all([certificate["covered"] for certificate in certificates]),
            _all([certificate["connected"] for certificate in certificates]),
            *(_score(group, split) for split in SPLITS),
            mean_cell(group.scores("ood", "r2")),
            group.minutes,
        ]

    trained = Column(name="trained", digits=0)
    columns: tuple[str | Column, ...] = (
        "seeds",
        "parameters",
        trained,
        "covered",
        "connected",
        *SPLITS.values(),
        "as published",
        MINUTES,
    )
    note = (
        f"R² pooled over outputs, {explain_intervals(finished.groups)}\n"
        "trained: training compositions; as published: R² of held-out compositions by the paper's definition\n"
        "more at once: tasks with more modules than any training task"
    )
    return tabulate_groups(finished, "Means over seeds", columns, list_cells, note)


def correlate_measured(finished: Finished) -> Table:
    """The decodability of the last hidden layer and the score, over all runs and over those whose support is fair."""
    from scipy.stats import pearsonr, spearmanr

    runs = [run for run in {run.run.path: run for run in finished.runs}.values() if "z_held_out" in run.measured]
    rows: list[tuple[Value, ...]] = []
    for which, chosen in (("all", runs), ("covered and connected", [run for run in runs if run.is_fair])):
        if len(chosen) < 3:
            continue
        decodable = [run.measured["z_held_out"] for run in chosen]
        scores = [run.score("ood", METRIC) for run in chosen]
        pearson, spearman = pearsonr(decodable, scores), spearmanr(decodable, scores)
        numbers = (float(pearson[0]), float(spearman[0]), float(spearman[1]))
        rows.append(("last hidden", which, len(chosen), *numbers))
    return Table(
        title="Decodability and score on held-out compositions, over runs",
        columns=("layer", "training compositions", "runs", "Pearson", "Spearman", "p (Spearman)"),
        rows=tuple(rows),
    )


def _score(group: Group, split: str) -> Cell | None:
    """The score over seeds, or nothing where the runs have no such split."""
    if len(group.scores(split, METRIC)) < len(group.runs):
        return None
    return cell(group.score(split, METRIC))


def _all(values: Sequence[bool]) -> str:
    return "yes" if all(values) else "no" if not any(values) else "some"


BLUE, ORANGE, GREY = *LIGHT_PALETTE[:2], "#8a8a8a"
SPLITS_FIGURES = {"ood": (BLUE, "held-out compositions"), "test": (GREY, "trained compositions")}


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
    for split, (colour, label) in SPLITS_FIGURES.items():
        values = [group.scores(split, METRIC) for group in groups]
        errors = [stdev(seeds) / len(seeds) ** 0.5 if len(seeds) > 1 else 0.0 for seeds in values]
        axes.errorbar(positions, list(map(fmean, values)), errors, fmt="o-", color=colour, label=label, capsize=3)
    axes.set(ylabel="R² pooled", ylim=(None, 1.02))


def _draw_supports(axes: Axes, groups: Sequence[Group]) -> None:
    """A point per seed and a bar at their mean."""
    for split, (colour, _) in SPLITS_FIGURES.items():
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
        fair, decodable = run.is_fair, run.measured["z_held_out"]
        colour, marker = (BLUE, "o") if fair else (ORANGE, "x")
        axes.plot(
            decodable, run.score("ood", METRIC) or 0.0, marker, color=colour, markersize=5, label=names.pop(fair, None)
        )
    axes.set(xlabel="R² of modules, last hidden layer, held out", ylabel="R² pooled, held out")
    axes.set_title("decodability")
    axes.legend()
