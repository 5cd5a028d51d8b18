"""Figures of the experiments on sequence teachers: error against length, capacity, and diversity of training sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recombine.drawing.canvas import canvas
from recombine.probe.measures.identification import FILE as IDENTIFICATION_FILE
from recombine.recipes.experiment import Runs, group_seeds
from recombine.recipes.length_generalization.runs import POOLS, STUDENTS, SUPPORTS
from recombine.report.figures import LIGHT_PALETTE
from recombine.store import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = Mapping[str, Sequence[Json]]  # what identification found in the runs of each seed, by label without the seed
TICKS = (1, 2, 5, 10, 20, 50, 100)
ALL_BUT_ALL = 1e-8  # less is not drawn: it would be the rounding of R²
LAST = 99  # position of the hundredth token


def read_found(runs: Runs) -> Found:
    return group_seeds({label: run.read_json(IDENTIFICATION_FILE) for label, run in runs.items()})


def draw_lengths(runs: Runs, folder: Path) -> list[Path]:
    """Error, its ratio to the constant and what identification misses, against length."""
    path = folder / "length_generalization.png"
    with canvas(path, 10.5, 3.2) as figure:
        error, ratio, identified = figure.subplots(1, 3)
        for colour, (label, found) in zip(LIGHT_PALETTE, read_found(runs).items(), strict=False):
            _draw_seeds(error, _read_errors(found), colour, label.replace("_", " "))
            _draw_seeds(ratio, _read_ratios(found), colour)
            for state, style in (("trained", "-"), ("untrained", ":")):
                missed = 1 - np.array([each[state]["r2"]["transfer"] for each in found])
                _draw_seeds(identified, np.maximum(missed, ALL_BUT_ALL), colour, style=style)
        _finish(error, "squared error at the last token")
        _finish(ratio, "as a ratio to the best constant")
        _finish(identified, "1 − R² of the teacher's hidden states\n(dotted: before training)")
        ratio.axhline(1, color="0.6", linewidth=0.8)
        error.legend()
    return [path]


def draw_capacity(runs: Runs, folder: Path) -> list[Path]:
    """Ratio to the constant against length, a panel for each class, without and with chain of thought."""
    groups, kinds = read_found(runs), ("outputs only", "chain of thought")
    panels = {student: {kind: groups.get(f"{student}, {kind}", ()) for kind in kinds} for student in STUDENTS}
    return _draw_panels(panels, folder / "length_capacity.png")


def draw_realisability(runs: Runs, folder: Path) -> list[Path]:
    """Ratio to the constant against length, a panel for each teacher, a line for each student."""
    groups = read_found(runs)
    teachers = dict.fromkeys(label.rpartition(" ")[2] for label in groups)
    panels = {
        f"teacher: {teacher}": {student: groups.get(f"{student}, taught by {teacher}", ()) for student in STUDENTS}
        for teacher in teachers
    }
    return _draw_panels(panels, folder / "length_realisability.png")


def _draw_panels(panels: Mapping[str, Found], path: Path) -> list[Path]:
    with canvas(path, 11, 2.9) as figure:
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, lines) in zip(every, panels.items(), strict=True):
            for colour, (label, found) in zip(LIGHT_PALETTE, lines.items(), strict=False):
                if found:
                    _draw_seeds(axes, _read_ratios(found), colour, label.replace("_", " "))
            _finish(axes, title.replace("_", " "))
            axes.axhline(1, color="0.6", linewidth=0.8)
        every[0].set(ylabel="squared error / best constant", ylim=(None, 1e3))
        every[0].legend()
    return [path]


def draw_diversity(runs: Runs, folder: Path) -> list[Path]:
    """Error and identification at a hundred tokens against how diverse training sequences were."""
    path, groups = folder / "length_diversity.png", read_found(runs)
    sweeps = (
        ("tokens from an interval of {:g}", SUPPORTS, "width of the interval of training tokens"),
        ("{} sequences", POOLS, "distinct training sequences"),
    )
    with canvas(path, 8, 5) as figure:
        every = figure.subplots(2, 2, sharey="row", subplot_kw={"xscale": "log", "yscale": "log"})
        for column, (words, values, title) in enumerate(sweeps):
            for colour, student in zip(LIGHT_PALETTE, ("deep_set", "attention"), strict=False):
                known = {value: found for value in values if (found := groups.get(f"{student}, {words.format(value)}"))}
                style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4}
                ratios = [_read_ratios(found)[:, LAST].mean() for found in known.values()]
                every[0, column].plot(list(known), ratios, label=student.replace("_", " "), **style)
                missed = [
                    np.mean([1 - each["trained"]["r2"]["transfer"][LAST] for each in found]) for found in known.values()
                ]
                every[1, column].plot(list(known), np.maximum(missed, ALL_BUT_ALL), **style)
            every[0, column].axhline(1, color="0.6", linewidth=0.8)
            every[1, column].set_xlabel(title)
        every[0, 0].set_ylabel("squared error at T = 100\n/ best constant")
        every[1, 0].set_ylabel("1 − R² of hidden states\nat T = 100")
        every[0, 0].legend()
    return [path]


def _read_errors(found: Sequence[Json]) -> np.ndarray:
    """Seeds × lengths."""
    return np.array([each["trained"]["loss"] for each in found])


def _read_ratios(found: Sequence[Json]) -> np.ndarray:
    return _read_errors(found) / np.array([each["trained"]["constant_loss"] for each in found])


def _draw_seeds(axes: Axes, values: np.ndarray, colour: str, label: str | None = None, style: str = "-") -> None:
    """A line for each seed: their mean would hide that some succeed and some fail."""
    axes.set(xscale="log", yscale="log")
    lengths = np.arange(1, values.shape[1] + 1)
    for number, each in enumerate(values):
        axes.plot(lengths, each, style, color=colour, label=None if number else label, linewidth=1.1, alpha=0.85)


def _finish(axes: Axes, title: str) -> None:
    axes.axvline(10, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(title=title, xlabel="tokens T")
    axes.set_xticks(TICKS, map(str, TICKS))
    axes.minorticks_off()
