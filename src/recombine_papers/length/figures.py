"""Figures of the experiments on sequence teachers: error against length, capacity, and diversity of training sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recombine.foundation import show_setting
from recombine.tasks import LIGHT_PALETTE, canvas
from recombine_papers.base import Finished, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS = (1, 2, 5, 10, 20, 50, 100)  # with measured numbers
LONGEST = LENGTHS[-1]
SMALLEST = 1e-8  # below that, 1 - R² is rounding


def draw_lengths(finished: Finished, folder: Path) -> list[Path]:
    """Error, its ratio to the constant and what identification misses, against length; dashed at the higher rate."""
    path = folder / "length_generalization.png"
    students = dict(zip(dict.fromkeys(_values(finished, "student")), LIGHT_PALETTE, strict=False))
    slow = min(_values(finished, "rate"))
    with canvas(path, 10.5, 3.6) as figure:
        error, ratio, identified = figure.subplots(1, 3)
        for group in finished.groups:
            colour = students[group.settings["student"]]
            line = "-" if group.settings["rate"] == slow else "--"
            _draw_seeds(error, _read(group, "error"), colour, group.text, style=line)
            _draw_seeds(ratio, _read(group, "ratio"), colour, style=line)
            for name, style in (("missed", line), ("missed_before", ":")):
                _draw_seeds(identified, np.maximum(_read(group, name), SMALLEST), colour, style=style)
        _finish(error, "squared error at the last token")
        _finish(ratio, "as a ratio to the best constant")
        _finish(identified, "1 − R² of the teacher's hidden states\n(dotted: before training)")
        ratio.axhline(1, color="0.6", linewidth=0.8)
        figure.legend(loc="outside lower center", ncols=4)
    return [path]


def draw_capacity(finished: Finished, folder: Path) -> list[Path]:
    """Ratio to the constant against length, a panel per student, with outputs only and with chain of thought."""
    slow = [group for group in finished.groups if group.settings["rate"] == min(_values(finished, "rate"))]
    return _draw_panels(slow, "student", "supervision", folder / "length_capacity.png")


def draw_realisability(finished: Finished, folder: Path) -> list[Path]:
    """Ratio to the constant against length, a panel per teacher, a line per student."""
    return _draw_panels(finished.groups, "teacher", "student", folder / "length_realisability.png")


def _values(finished: Finished, name: str) -> list[Any]:
    return [group.settings[name] for group in finished.groups if name in group.settings]


def _draw_panels(groups: Sequence[Group], panel: str, line: str, path: Path) -> list[Path]:
    """A panel for each value of one setting, a line for each value of another."""
    panels: dict[Any, list[Group]] = {}
    for group in groups:
        panels.setdefault(group.settings[panel], []).append(group)
    colours = dict(zip(dict.fromkeys(group.settings[line] for group in groups), LIGHT_PALETTE, strict=False))
    with canvas(path, 11, 2.9) as figure:
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (value, lines) in zip(every, panels.items(), strict=True):
            for group in lines:
                name = group.settings[line]
                _draw_seeds(axes, _read(group, "ratio"), colours[name], show_setting(name))
            _finish(axes, f"{panel}: {show_setting(value)}")
            axes.axhline(1, color="0.6", linewidth=0.8)
        every[0].set(ylabel="squared error / best constant", ylim=(None, 1e3))
        every[0].legend()
    return [path]


def draw_diversity(finished: Finished, folder: Path) -> list[Path]:
    """Error and identification at a hundred tokens against the diversity of training sequences."""
    path = folder / "length_diversity.png"
    sweeps = {"interval": "width of the interval of training tokens", "sequences": "distinct training sequences"}
    students = dict.fromkeys(_values(finished, "student"))
    with canvas(path, 8, 5) as figure:
        every = figure.subplots(2, 2, sharey="row", subplot_kw={"xscale": "log", "yscale": "log"})
        for column, (name, title) in enumerate(sweeps.items()):
            for colour, student in zip(LIGHT_PALETTE, students, strict=False):
                chosen = {
                    float(group.settings[name]): group
                    for group in finished.groups
                    if name in group.settings and group.settings["student"] == student
                }
                _draw_diversity_of(every[:, column], chosen, colour, show_setting(student))
            every[0, column].axhline(1, color="0.6", linewidth=0.8)
            every[1, column].set_xlabel(title)
        every[0, 0].set_ylabel("squared error at T = 100\n/ best constant")
        every[1, 0].set_ylabel("1 − R² of hidden states\nat T = 100")
        every[0, 0].legend()
    return [path]


def _draw_diversity_of(axes: Any, chosen: Mapping[float, Group], colour: str, label: str) -> None:
    """Ratio above, what identification misses below; means over seeds."""
    style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4}
    last = LONGEST
    axes[0].plot(
        list(chosen), [np.mean(group.measured(f"ratio_{last}")) for group in chosen.values()], label=label, **style
    )
    missed = [np.mean(group.measured(f"missed_{last}")) for group in chosen.values()]
    axes[1].plot(list(chosen), np.maximum(missed, SMALLEST), **style)


def _read(group: Group, name: str) -> np.ndarray:
    """A measured number at each length: seeds × lengths. NaN, which is not drawn, where a run has none."""
    return np.array([[run.measured.get(f"{name}_{length}", np.nan) for length in LENGTHS] for run in group.runs])


def _draw_seeds(axes: Axes, values: np.ndarray, colour: str, label: str | None = None, style: str = "-") -> None:
    """One line per seed: their mean would hide that some succeed and some fail."""
    axes.set(xscale="log", yscale="log")
    for number, seed in enumerate(values):
        axes.plot(LENGTHS, seed, style, color=colour, label=None if number else label, linewidth=1.1, alpha=0.85)


def _finish(axes: Axes, title: str) -> None:
    axes.axvline(10, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(title=title, xlabel="tokens T")
    axes.set_xticks(LENGTHS, map(str, LENGTHS))
    axes.minorticks_off()
