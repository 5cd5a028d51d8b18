"""The figures of docs/scale.md, from the runs that `recombine reproduce scale-...` left in a folder.

python examples/scale_figures.py runs/scale docs/images/scale.png small
"""

import sys
from collections.abc import Callable
from statistics import fmean, stdev

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from recombine.probe.decodability import measure_decodability
from recombine.recipes import EXPERIMENTS
from recombine.recipes.experiment import find_runs, group_seeds
from recombine.recipes.scale_tables import NUM_INSTANCES
from recombine.run import RunConfig
from recombine.store import RunDirectory

BLUE, ORANGE, GREY = "#2f6db3", "#d9722e", "#8a8a8a"
SPLITS = {"ood": (BLUE, "held-out compositions"), "test": (GREY, "trained compositions")}


Seeds = dict[str, list[RunDirectory]]


def load(out: str, experiment: str, scale: str) -> Seeds:
    """Finished runs of an experiment by setting."""
    return group_seeds(find_runs(EXPERIMENTS[experiment], scale, out))  # type: ignore[arg-type]


def read_score(run: RunDirectory, split: str) -> float:
    return run.read_json("result.json")["scores"][split]["r2_pooled"]["value"]


def draw_curve(axes: Axes, groups: Seeds, position: Callable[[RunConfig], int]) -> None:
    """R² of both splits against a number that each setting has, with standard errors over seeds."""
    for split, (colour, label) in SPLITS.items():
        x = [position(RunConfig.from_dict(runs[0].config)) for runs in groups.values()]
        values = [[read_score(run, split) for run in runs] for runs in groups.values()]
        errors = [stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0 for each in values]
        axes.errorbar(x, [fmean(each) for each in values], errors, fmt="o-", color=colour, label=label, capsize=3)
    axes.set(ylabel="R² pooled", ylim=(None, 1.02))


def draw_supports(axes: Axes, groups: Seeds) -> None:
    for split, (colour, _) in SPLITS.items():
        for row, runs in enumerate(groups.values()):
            values = [read_score(run, split) for run in runs]
            axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.5, markersize=4)
            axes.plot(fmean(values), row, "|", color=colour, markersize=16, markeredgewidth=3)
    axes.set_yticks(range(len(groups)), [name.replace("_", " ") for name in groups])
    axes.invert_yaxis()
    axes.set(xlabel="R² pooled", title="support")


def draw_decodability(axes: Axes, groups: Seeds, site: str) -> None:
    """One point a run; those whose support leaves modules uncovered or apart stand out."""
    for runs in groups.values():
        for run in runs:
            decodable = measure_decodability(run.path, num_instances=NUM_INSTANCES)["sites"][site]["ood"]
            certificate = run.read_json("split.json")["certificate"]
            fair = certificate["connected"] and certificate["covered"]
            axes.plot(
                decodable,
                read_score(run, "ood"),
                "o" if fair else "x",
                color=BLUE if fair else ORANGE,
            )
    axes.set(xlabel=f"decodability of modules, held out ({site})", ylabel="R² pooled, held out", title="decodability")


def main(out: str, path: str, scale: str = "small") -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 7), layout="constrained")
    draw_curve(axes[0, 0], load(out, "scale-width", scale), lambda run: run.model.hidden_dim)
    axes[0, 0].set(xscale="log", xlabel="width", title="width")
    draw_curve(axes[0, 1], load(out, "scale-compositions", scale), lambda run: len(run.task.split.train))
    axes[0, 1].set(xlabel="training compositions", title="training compositions")
    axes[0, 1].legend(frameon=False)
    draw_supports(axes[1, 0], load(out, "scale-supports", scale))
    draw_decodability(axes[1, 1], load(out, "scale-decodability", scale), "hidden.1")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main(*sys.argv[1:])
