"""Figures of the in-context experiment: learning curves, decodability by layer, and richer supports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recombine.sweeps import Setting, matches
from recombine.tasks import LIGHT_PALETTE, canvas
from recombine_papers.base import Finished, Group
from recombine_papers.in_context.measures import METRIC
from recombine_papers.learning_curves import read_curves
from recombine_papers.scale.decodability import measure_decodability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = list[tuple[str, str, Group]]  # name, colour, runs


def draw_in_context(finished: Finished, folder: Path, variants: Mapping[str, Mapping[str, Setting]]) -> list[Path]:
    """Scores and decodability."""
    curves = [
        (name, colour, group)
        for (name, variant), colour in zip(variants.items(), LIGHT_PALETTE, strict=False)
        if (group := finished.find(**variant)) is not None
    ]
    path = folder / "in_context_scores.png"
    with canvas(path, 7.5, 3) as figure:
        left, right = figure.subplots(1, 2)
        _draw_curves(left, curves)
        _draw_layers(right, curves)
    return [path]


def _draw_curves(axes: Axes, curves: Curves) -> None:
    """R² against the step, the mean over seeds with a band from the lowest to the highest: held out solid, trained dotted."""
    for name, colour, group in curves:
        for split, dash in (("ood", "-"), ("test", ":")):
            steps, values = read_curves(group, split, METRIC)
            axes.plot(steps, values.mean(axis=0), dash, color=colour, label=name if split == "ood" else None)
            if split == "ood":
                axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="R² (pooled)", ylim=(0, 1.02), title="held out (solid), trained (dotted)")


def _draw_layers(axes: Axes, curves: Curves) -> None:
    """Decodability of z on held-out compositions by layer; dashed, that of the untrained network."""
    for name, colour, group in curves:
        seeds = [measure_decodability(run.run.path)["sites"] for run in group.runs]
        layers = [_layer_name(site) for site in seeds[0]]
        trained = np.array([[site["ood"] for site in sites.values()] for sites in seeds])
        untrained = np.array([[site["untrained"]["ood"] for site in sites.values()] for sites in seeds])
        axes.plot(layers, trained.mean(axis=0), "o-", color=colour, label=name)
        axes.plot(layers, untrained.mean(axis=0), "--", color=colour, linewidth=1)
    axes.axhline(0, color="#c9cecd", linewidth=1, zorder=0)
    axes.set(xlabel="residual stream after layer", ylabel="R² of z, held out", ylim=(-0.5, 1.02))
    axes.set_title("decodability of z (dashed: untrained)")
    axes.legend(loc="lower left")  # for both panels


def _layer_name(site: str) -> str:
    kind, _, layer = site.rpartition(".")
    return str(int(layer) + 1) if kind == "residual" else "code"


def draw_supports(finished: Finished, folder: Path) -> list[Path]:
    """R² on held-out compositions against the number of trained ones: both models, and the bottleneck with a fitted code."""
    path = folder / "in_context_supports.png"
    with canvas(path, 4.5, 3.2) as figure:
        axes = figure.subplots()
        for name, colour in zip(("vanilla", "bottleneck", "fitted code"), LIGHT_PALETTE, strict=False):
            points = _read_supports(finished, name)
            numbers = [number for number, _ in points]
            axes.plot(numbers, [np.mean(values) for _, values in points], "o-", color=colour, label=name)
            for number, values in points:
                axes.plot([number] * len(values), values, ".", color=colour, markersize=4, alpha=0.6)
        axes.set(xlabel="trained pairs, of 15", ylabel="R² (pooled), held-out pairs", ylim=(None, 1.02))
        axes.legend(loc="lower right")
    return [path]


def _read_supports(finished: Finished, name: str) -> list[tuple[int, list[float]]]:
    """The number of trained compositions and one value per seed, sorted."""
    model = "bottleneck" if name == "fitted code" else name
    wanted = {"model": model, "modules": "shared", "trunk": "softmax"}
    shared = [group for group in finished.groups if matches(group.settings, wanted)]
    return sorted(
        (
            int(group.settings["trained"]),
            group.measured("fitted_code") if name != model else group.scores("ood", METRIC),
        )
        for group in shared
    )
