"""Figures of the in-context experiment: learning curves, decodability by layer, and gradients between combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recombine.drawing.canvas import canvas
from recombine.probe.measures.decodability import FILE as DECODABILITY_FILE
from recombine.probe.measures.gradients import FILE as GRADIENTS_FILE
from recombine.recipes.experiment import Runs, group_seeds
from recombine.report.figures import LIGHT_PALETTE
from recombine.store import Json, RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC = "r2_pooled"
Variants = Mapping[str, Sequence[RunDirectory]]  # runs of each seed, by label without the seed
CURVES = {
    "connected / vanilla / softmax": "vanilla",
    "connected / bottleneck / softmax": "bottleneck",
    "connected / bottleneck mlp / softmax": "bottleneck, no hypernetwork",
    "connected / vanilla / hyla": "vanilla, HYLA",
}


def draw_in_context(runs: Runs, folder: Path) -> list[Path]:
    variants = group_seeds(runs)
    paths = [folder / "in_context_scores.png", folder / "in_context_gradients.png"]
    with canvas(paths[0], 7.5, 3) as figure:
        left, right = figure.subplots(1, 2)
        _draw_curves(left, variants)
        _draw_layers(right, variants)
    with canvas(paths[1], 7.5, 3) as figure:
        left, right = figure.subplots(1, 2)
        _draw_gradients(left, variants, "variance_share", "variance between combinations\n/ mean squared gradient")
        _draw_gradients(right, variants, "transfer", "cosine with the gradient\nof held-out combinations")
    return paths


def _draw_curves(axes: Axes, variants: Variants) -> None:
    """R² against the step, the mean over seeds in a band of all of them: held out solid, trained dotted."""
    for number, (variant, name) in enumerate(CURVES.items()):
        rows = [[row for row in run.read_metrics() if "scores" in row] for run in variants.get(variant, [])]
        if not rows:
            continue
        steps = [row["step"] for row in rows[0]]
        for split, dash in (("ood", "-"), ("test", ":")):
            values = np.array([[row["scores"][split][METRIC] for row in each] for each in rows])
            colour = LIGHT_PALETTE[number]
            axes.plot(steps, values.mean(axis=0), dash, color=colour, label=name if split == "ood" else None)
            if split == "ood":
                axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="R² (pooled)", ylim=(0, 1.02), title="held out (solid), trained (dotted)")


def _draw_layers(axes: Axes, variants: Variants) -> None:
    """Decodability of z on held-out combinations by layer; dashed, the untrained network's."""
    for number, (variant, name) in enumerate(CURVES.items()):
        found = [run.read_json(DECODABILITY_FILE)["sites"] for run in variants.get(variant, [])]
        if not found:
            continue
        names = [_layer_name(site) for site in found[0]]
        colour = LIGHT_PALETTE[number]
        values = np.array([[site["ood"] for site in sites.values()] for sites in found])
        untrained = np.array([[site["untrained"]["ood"] for site in sites.values()] for sites in found])
        axes.plot(names, values.mean(axis=0), "o-", color=colour, label=name)
        axes.plot(names, untrained.mean(axis=0), "--", color=colour, linewidth=1)
    axes.axhline(0, color="#c9cecd", linewidth=1, zorder=0)
    axes.set(xlabel="residual stream behind layer", ylabel="R² of z, held out", ylim=(-0.5, 1.02))
    axes.set_title("decodability of z (dashed: untrained)")
    axes.legend(loc="lower left")  # the colours of both panels


def _layer_name(site: str) -> str:
    kind, _, layer = site.rpartition(".")
    return str(int(layer) + 1) if kind == "residual" else "code"


def _draw_gradients(axes: Axes, variants: Variants, key: str, title: str) -> None:
    for number, (variant, name) in enumerate(CURVES.items()):
        seeds = [run for run in variants.get(variant, []) if (run.path / GRADIENTS_FILE).exists()]
        if not seeds:
            continue
        rows: list[Json] = seeds[0].read_json(GRADIENTS_FILE)["rows"]
        values = [row[key] for row in rows]
        axes.plot([row["step"] for row in rows], values, "o-", color=LIGHT_PALETTE[number], label=name)
    axes.axhline(0, color="#c9cecd", linewidth=1, zorder=0)
    axes.set(xscale="log", xlabel="step", ylabel=title)
    axes.legend()
