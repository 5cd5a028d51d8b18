"""Tables of the scale experiments: means over seeds, and whether decodability goes with success.

Decodability is the R² of ridge regression from the activations of a layer to the strengths of the modules, fitted on half of
the tasks of training compositions and scored on the other half and on held-out compositions (arXiv 2507.07207).

The figure of the scale experiments: width, training compositions, supports, and decodability against success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from recombine.foundation import Cell, Column, Table, Value, show_setting
from recombine.sweeps import Finished, FinishedRun, Group, cell, explain_intervals, mean_cell, spread
from recombine.tasks import LIGHT_PALETTE, canvas
from recombine.training import Json, RunDirectory
from recombine_papers.scale.decodability import measure_decodability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC = "r2_pooled"
NUM_INSTANCES = 4_000  # per split, to fit and score the decoders
SPLITS = {"test": "R² trained", "ood": "R² held out", "unknown": "R² more at once"}


def tabulate_seeds(finished: Finished) -> list[Table]:
    """Means over seeds, one row per setting."""
    rows: list[tuple[Value, ...]] = []
    for group in finished.groups:
        certificates = [run.certificate for run in group.runs]
        rows.append(
            (
                *finished.show_settings(group.settings),
                len(group.runs),
                max(run.result["num_parameters"] for run in group.runs),
                spread([certificate["num_train"] for certificate in certificates]),
                _all([certificate["covered"] for certificate in certificates]),
                _all([certificate["connected"] for certificate in certificates]),
                *(_score(group, split) for split in SPLITS),
                mean_cell(group.scores("ood", "r2")),
                sum(run.result["seconds"] for run in group.runs) / 60,
            )
        )
    columns: tuple[str | Column, ...] = (
        *finished.setting_columns,
        "seeds",
        "parameters",
        Column(name="trained", digits=0),
        "covered",
        "connected",
        *SPLITS.values(),
        "as published",
        Column(name="minutes", format="fixed", digits=1),
    )
    note = (
        f"R² pooled over outputs, {explain_intervals(finished.groups)}\n"
        "trained: training compositions; as published: R² of held-out compositions by the paper's definition\n"
        "more at once: tasks with more modules than any training task"
    )
    return [Table(title="Means over seeds", columns=columns, rows=tuple(rows), note=note)]


@dataclass(frozen=True)
class Readout:
    """The score of a run, whether its split is covered and connected, and the decodability ID and OOD of each layer."""

    score: float | None
    fair: bool
    sites: Mapping[str, tuple[float | None, float]]


def correlate_decodability(finished: Finished, device: str) -> list[Table]:
    """Decodability and score of each run, and their correlation."""
    measured = finished.measure(lambda run: read_decodability(run, device))
    readouts = {run.run.path: _read(run, measured[run.run.path]) for run in finished.runs}
    sites = list(dict.fromkeys(site for readout in readouts.values() for site in readout.sites))
    rows: list[tuple[Value, ...]] = []
    for run in finished.runs:
        readout = readouts[run.run.path]
        numbers = [value for site in sites for value in readout.sites.get(site, (None, None))]
        rows.append((*finished.show_settings(run.record.settings), run.record.seed, readout.score, *numbers))
    table = Table(
        title="How well the strengths of modules can be read from each layer",
        columns=(
            *finished.setting_columns,
            "seed",
            "R² held out",
            *(f"{site} {side}" for site in sites for side in ("id", "ood")),
        ),
        rows=tuple(rows),
        note="R², pooled over the modules that are trained",
    )
    return [table, _correlate(readouts, sites)]


def correlate_measured(finished: Finished) -> Table:
    """The correlation for the last hidden layer, from the numbers that `scale-decodability` keeps of each run."""
    readouts = {
        run.run.path: _read(run, {"sites": {"last hidden": {"id": None, "ood": run.measured["z_held_out"]}}})
        for run in finished.runs
        if "z_held_out" in run.measured
    }
    return _correlate(readouts, ["last hidden"])


def read_decodability(run: RunDirectory, device: str = "auto") -> Json:
    """How well strengths can be read from each layer; measured once."""
    return measure_decodability(run.path, num_instances=NUM_INSTANCES, device=device)


def _correlate(readouts: Mapping[Path, Readout], sites: Sequence[str]) -> Table:
    """Over all runs, and over those whose training compositions cover all modules and connect them."""
    from scipy.stats import pearsonr, spearmanr

    rows: list[tuple[Value, ...]] = []
    for site in sites:
        for which in ("all", "covered and connected"):
            pairs = [
                (readout.sites[site][1], readout.score)
                for readout in readouts.values()
                if site in readout.sites and (which == "all" or readout.fair)
            ]
            if len(pairs) < 3:
                continue
            decodable, scores = zip(*pairs, strict=True)
            pearson, spearman = pearsonr(decodable, scores), spearmanr(decodable, scores)
            rows.append((site, which, len(pairs), float(pearson[0]), float(spearman[0]), float(spearman[1])))
    return Table(
        title="Decodability and score on held-out compositions, over runs",
        columns=("layer", "training compositions", "runs", "Pearson", "Spearman", "p (Spearman)"),
        rows=tuple(rows),
    )


def _read(run: FinishedRun, decodability: Json) -> Readout:
    return Readout(
        score=run.score("ood", METRIC),
        fair=bool(run.certificate["covered"] and run.certificate["connected"]),
        sites={site: (scores["id"], scores["ood"]) for site, scores in decodability["sites"].items()},
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
        fair = bool(run.certificate["connected"] and run.certificate["covered"])
        decodable = run.measured["z_held_out"]
        colour, marker = (BLUE, "o") if fair else (ORANGE, "x")
        axes.plot(
            decodable, run.score("ood", METRIC) or 0.0, marker, color=colour, markersize=5, label=names.pop(fair, None)
        )
    axes.set(xlabel="R² of modules, last hidden layer, held out", ylabel="R² pooled, held out")
    axes.set_title("decodability")
    axes.legend()
