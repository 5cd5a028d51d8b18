"""The figure of the scale experiments: width, training compositions, supports, and decodability against success."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from recombine.drawing.canvas import canvas
from recombine.probe.measures.decodability import FILE as DECODABILITY_FILE
from recombine.recipes.experiment import Runs, group_seeds
from recombine.recipes.scale.tables import METRIC
from recombine.report.figures import LIGHT_PALETTE
from recombine.run import RunConfig
from recombine.store import RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Settings = Mapping[str, Sequence[RunDirectory]]  # runs of each seed, by label without the seed
BLUE, ORANGE, GREY = *LIGHT_PALETTE[:2], "#8a8a8a"
SPLITS = {"ood": (BLUE, "held-out compositions"), "test": (GREY, "trained compositions")}


def draw_scale(runs: Runs, folder: Path) -> list[Path]:
    """Of the runs of scale-decodability, which are those of width, compositions and supports together."""
    settings = group_seeds(runs)
    widths = {label: seeds for label, seeds in settings.items() if label.startswith("width ")}
    compositions = {label: seeds for label, seeds in settings.items() if label.endswith(" compositions")}
    supports = {label: seeds for label, seeds in settings.items() if label not in widths | compositions}
    path = folder / "scale.png"
    with canvas(path, 9.5, 7) as figure:
        (width, composition), (support, decodability) = figure.subplots(2, 2)
        _draw_curve(width, widths, lambda run: _read_config(run).model.hidden_dim)
        width.set(xscale="log", xlabel="width", title="width")
        sizes = [_read_config(seeds[0]).model.hidden_dim for seeds in widths.values()]
        width.set_xticks(sizes, map(str, sizes))
        width.minorticks_off()
        _draw_curve(composition, compositions, lambda run: len(_read_config(run).task.split.train))
        composition.set(xlabel="training compositions", title="training compositions")
        composition.legend(loc="lower right")
        _draw_supports(support, supports)
        _draw_decodability(decodability, runs)
    return [path]


def _read_config(run: RunDirectory) -> Any:
    return RunConfig.from_dict(run.config)


def _read_score(run: RunDirectory, split: str) -> float:
    return run.read_json("result.json")["scores"][split][METRIC]["value"]


def _draw_curve(axes: Axes, settings: Settings, position: Callable[[RunDirectory], int]) -> None:
    """R² of both splits against a number that each setting has, with standard errors over seeds."""
    for split, (colour, label) in SPLITS.items():
        x = [position(seeds[0]) for seeds in settings.values()]
        values = [[_read_score(run, split) for run in seeds] for seeds in settings.values()]
        errors = [stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0 for each in values]
        axes.errorbar(x, [fmean(each) for each in values], errors, fmt="o-", color=colour, label=label, capsize=3)
    axes.set(ylabel="R² pooled", ylim=(None, 1.02))


def _draw_supports(axes: Axes, settings: Settings) -> None:
    for split, (colour, _) in SPLITS.items():
        for row, seeds in enumerate(settings.values()):
            values = [_read_score(run, split) for run in seeds]
            axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.5, markersize=4)
            axes.plot(fmean(values), row, "|", color=colour, markersize=16, markeredgewidth=3)
    axes.set_yticks(range(len(settings)), [label.replace("_", " ") for label in settings])
    axes.invert_yaxis()
    axes.set(xlabel="R² pooled", title="support")


def _draw_decodability(axes: Axes, runs: Runs) -> None:
    """One point a run; those whose support leaves modules uncovered or apart stand out."""
    names = {True: "covered and connected", False: "not so"}
    for run in {run.path: run for run in runs.values()}.values():
        certificate = run.read_json("split.json")["certificate"]
        fair = certificate["connected"] and certificate["covered"]
        sites = run.read_json(DECODABILITY_FILE)["sites"]
        decodable = sites[max(sites)]["ood"]  # hidden.0, hidden.1, ...
        colour, marker = (BLUE, "o") if fair else (ORANGE, "x")
        axes.plot(decodable, _read_score(run, "ood"), marker, color=colour, markersize=5, label=names.pop(fair, None))
    axes.set(xlabel="R² of modules, last hidden layer, held out", ylabel="R² pooled, held out")
    axes.set_title("decodability")
    axes.legend()
