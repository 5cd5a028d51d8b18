"""Episodes of the grid worlds for people: the map as text, and drawn with the expert's walk.

In a drawing an object's kind is its shape (and, beyond the sixteenth kind, a dot on it); arrows are the expert's steps, each
a little to the right of its direction, so that the way back does not hide the way there, and darker the later it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from recombine.errors import check_choice
from recombine.tasks.sraven_picture import FAINT, INK, METADATA, SHAPES, save_figure

FLOOR, WALL, SHADE = "#f6f4ef", "#39424e", "#fde8d7"
GOOD, BAD, PLAIN = "#0f766e", "#be4b3b", "#8d97a3"
EARLY, LATE = np.array([0.98, 0.73, 0.45]), np.array([0.60, 0.20, 0.03])  # of the steps
INCHES = 0.62  # a cell
PANEL = 5.2  # cells beside the map
ASIDE = 0.16  # how far a step is drawn from the middle


class Mark(NamedTuple):
    """An object on a map, the colour it is drawn in, and what the key says of it."""

    cell: int
    kind: int
    colour: str
    label: str
    value: float | None = None  # with a bar of this length in the key


def write_map(walls: Bool[Tensor, "height width"], agent: int, objects: dict[int, str]) -> list[str]:
    """One line of text a row: walls, the agent as @, objects as their letters."""
    width = walls.shape[1]
    letters = ["██" if wall else " ·" for wall in walls.flatten().tolist()]
    for cell, name in {**objects, agent: "@"}.items():
        letters[cell] = f" {name}"
    return ["".join(letters[first : first + width]) for first in range(0, len(letters), width)]


def draw_map(
    path: Path | str,
    *,
    walls: Bool[Tensor, "height width"],
    walk: Sequence[int],
    marks: Sequence[Mark],
    title: str,
    ending: str,
    shaded: Sequence[int] = (),
) -> None:
    """Write an episode as PNG or SVG: the map with its walk, and the key of its objects beside it."""
    from matplotlib.figure import Figure

    path = Path(path)
    check_choice("picture format", path.suffix, METADATA)
    height, width = walls.shape
    right, top = width + PANEL, height + 0.95
    figure = Figure(figsize=(INCHES * (right + 0.3), INCHES * (top + 0.3)), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.3, right), ylim=(-0.3, top), aspect="equal")
    axes.axis("off")
    axes.text(0, height + 0.3, title, ha="left", va="bottom", fontsize=10.5, color=INK)
    for cell, wall in enumerate(walls.flatten().tolist()):
        colour = WALL if wall else SHADE if cell in shaded else FLOOR
        _draw_square(axes, _centre(cell, walls), colour, edge=colour if wall else "#e3dfd6")
    for mark in marks:
        _draw_object(axes, _centre(mark.cell, walls), 0.3, mark)
    _draw_walk(axes, [_centre(cell, walls) for cell in walk])
    _draw_key(axes, marks, width + 0.75, height, ending)
    save_figure(figure, path)


def _centre(cell: int, walls: Tensor) -> Any:
    height, width = walls.shape
    return np.array([cell % width + 0.5, height - 0.5 - cell // width])


def _draw_square(axes: Any, centre: Any, colour: str, edge: str) -> None:
    corners = centre + 0.5 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    axes.fill(*corners.T, facecolor=colour, edgecolor=edge, linewidth=0.8)


def _draw_object(axes: Any, centre: Any, radius: float, mark: Mark) -> None:
    outline = centre + radius * SHAPES[mark.kind % len(SHAPES)]
    axes.fill(*outline.T, facecolor=mark.colour, edgecolor="white", linewidth=0.8, joinstyle="round", zorder=3)
    for dot in range(mark.kind // len(SHAPES)):
        axes.plot(*centre + np.array([0.12 * dot, 0]), "o", color="white", markersize=3, zorder=4)


def _draw_walk(axes: Any, points: Sequence[Any]) -> None:
    """The start as a disc, each step as an arrow, the end as a ring."""
    for step, (start, end) in enumerate(itertools.pairwise(points)):
        ahead = end - start
        if not ahead.any():
            continue  # into a wall
        aside = ASIDE * np.array([ahead[1], -ahead[0]])
        late = step / max(1, len(points) - 2)
        arrow = {"arrowstyle": "-|>,head_length=0.45,head_width=0.22", "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0}
        arrow["color"] = tuple(EARLY + late * (LATE - EARLY))
        begin, tip = start + aside + 0.12 * ahead, end + aside - 0.12 * ahead
        axes.annotate("", xy=tuple(tip), xytext=tuple(begin), arrowprops=arrow, zorder=5)
    axes.plot(*points[0], "o", color=INK, markersize=13, markeredgecolor="white", zorder=6)
    axes.plot(*points[-1], "o", color="none", markersize=19, markeredgecolor=INK, markeredgewidth=1.6, zorder=6)


def _draw_key(axes: Any, marks: Sequence[Mark], left: float, height: int, ending: str) -> None:
    """What each object is, with a bar for what it is worth, from the best to the worst; then the signs."""
    rows = sorted(marks, key=lambda mark: -(mark.value or 0))
    longest = max([abs(mark.value) for mark in rows if mark.value is not None] or [1.0])
    valued = any(mark.value is not None for mark in rows)
    zero = left + 2.9
    for row, mark in enumerate(rows):
        y = height - 0.5 - 0.85 * row
        _draw_object(axes, np.array([left, y]), 0.26, mark)
        axes.text(left + 0.5, y, mark.label, ha="left", va="center", fontsize=9, color=INK)
        if mark.value is not None:
            length = 0.95 * mark.value / longest
            axes.fill([zero, zero + length, zero + length, zero], [y - 0.16, y - 0.16, y + 0.16, y + 0.16], mark.colour)
            text = f"{mark.value:+.2f}".replace("-", "−")
            axes.text(left + 4.1, y, text, ha="left", va="center", fontsize=8, color=INK)
    if valued:
        axes.plot([zero, zero], [height - 0.1, height - 0.9 - 0.85 * (len(rows) - 1)], color=FAINT, linewidth=0.8)
    axes.plot(left, 1.15, "o", color=INK, markersize=13, markeredgecolor="white")
    axes.text(left + 0.5, 1.15, "the agent starts", ha="left", va="center", fontsize=9, color=INK)
    axes.plot(left, 0.35, "o", color="none", markersize=19, markeredgecolor=INK, markeredgewidth=1.6)
    axes.text(left + 0.5, 0.35, ending, ha="left", va="center", fontsize=9, color=INK)
