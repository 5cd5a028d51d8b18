"""Episodes of the grid worlds: the map as text, and as a drawing with the expert's path.

In a drawing the shape of an object shows its kind (with a dot beyond the sixteenth kind). Arrows are the expert's steps.
They are shifted to the right of their direction, so that a path and its return stay visible, and get darker over time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from recombine.foundation.errors import check_choice
from recombine.tasks.view import EARLY, FAINT, FLOOR, INK, LATE, METADATA, SHADE, SHAPES, WALL, save_figure

SIDE, LARGEST = 5.4, 0.62  # size of a map, and maximum size of a cell, in inches
ROOMY = 0.49  # cell size for full-size disc and ring, in inches; they shrink in smaller cells
ASIDE = 0.16  # offset of a step from the middle of the cell
ROW, MARGIN = 0.85, 0.3  # row height of the key and outer margin, in cells


class Mark(NamedTuple):
    """An object on a map, with its colour and its text in the key."""

    cell: int
    kind: int
    colour: str
    label: str
    value: float | None = None  # length of its bar in the key


def write_map(walls: Bool[Tensor, "height width"], agent: int, objects: dict[int, str]) -> list[str]:
    """One line of text per row: walls, the agent as @, objects as letters."""
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
    """Write an episode as PNG or SVG: the map with the expert's path, and a key of the objects."""
    from matplotlib.figure import Figure

    path = Path(path)
    check_choice("picture format", path.suffix, METADATA)
    height, width = walls.shape
    inches = min(LARGEST, SIDE / height)
    key = 3.5 if any(mark.value is not None for mark in marks) else 2.4
    rows = _list_rows(marks)
    signs = _place_signs(len(rows), height)
    right, top, bottom = width + key / inches, height + 0.6 / inches, min(0, signs[-1] - 0.25) - MARGIN
    figure = Figure(figsize=(inches * (right + MARGIN), inches * (top - bottom)), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-MARGIN, right), ylim=(bottom, top), aspect="equal")
    axes.axis("off")
    axes.text(0, height + 0.3, title, ha="left", va="bottom", fontsize=10.5, color=INK)
    for cell, wall in enumerate(walls.flatten().tolist()):
        colour = WALL if wall else SHADE if cell in shaded else FLOOR
        _draw_square(axes, _centre(cell, walls), colour, edge=colour if wall else "#e3dfd6")
    axes.plot([0, width, width, 0, 0], [0, 0, height, height, 0], color=WALL, linewidth=1.5, solid_joinstyle="miter")
    for mark in marks:
        _draw_object(axes, _centre(mark.cell, walls), 0.3, mark)
    scale = min(1.0, inches / ROOMY)
    _draw_walk(axes, [_centre(cell, walls) for cell in walk], scale)
    _draw_key(axes, rows, width + 0.75, height)
    _draw_signs(axes, signs, width + 0.75, ending, scale)
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


def _draw_walk(axes: Any, points: Sequence[Any], scale: float) -> None:
    """The start as a disc, each step as a line with a head, the end as a ring."""
    steps = [(start, end) for start, end in itertools.pairwise(points) if (end != start).any()]  # none into a wall
    asides = [ASIDE * np.array([(end - start)[1], -(end - start)[0]]) for start, end in steps]
    line = [points[0]]
    for number, (start, end) in enumerate(steps):
        late = number / max(1, len(steps) - 1)
        colour = tuple(EARLY + late * (LATE - EARLY))
        begin = start + asides[number] + (_turn(asides[number - 1], asides[number]) if number else 0)
        tip = end + asides[number]
        if number + 1 < len(steps):
            tip = tip + _turn(asides[number + 1], asides[number])
        line = [
            *line[-1:],
            begin,
            tip,
        ]  # continue from the tip of the last step, which is elsewhere if the path turns back
        axes.plot(*np.array(line).T, color=colour, linewidth=2.4, solid_capstyle="round", zorder=5)
        ahead, middle = 0.13 * (end - start), (start + end) / 2 + asides[number]
        across = 0.62 * np.array([ahead[1], -ahead[0]])
        head = np.array([middle + ahead, middle - ahead + across, middle - ahead - across])
        axes.fill(*head.T, facecolor=colour, edgecolor=colour, linewidth=1.2, joinstyle="round", zorder=5)
    axes.plot(*points[0], "o", color=INK, markersize=13 * scale, markeredgecolor="white", zorder=6)
    axes.plot(*points[-1], "o", color="none", markersize=23 * scale, markeredgecolor=INK, markeredgewidth=1.6, zorder=6)


def _turn(other: Any, own: Any) -> Any:
    """How far a step's line is shortened or extended where it meets another step at a right angle."""
    return other if abs(other @ own) < 1e-9 else 0 * own


def _list_rows(marks: Sequence[Mark]) -> list[Mark]:
    """Entries of the key: objects from best to worst; objects without a value once per kind."""
    rows = sorted(marks, key=lambda mark: -(mark.value or 0))
    return rows if any(mark.value for mark in rows) else list({mark.label: mark for mark in rows}.values())


def _place_signs(num_rows: int, height: int) -> tuple[float, float]:
    """Heights of the start and end entries of the key: at the bottom of the map, or below the last row."""
    start = min(1.15, height - 0.6 - ROW * num_rows)
    return start, start - 0.8


def _draw_key(axes: Any, rows: Sequence[Mark], left: float, height: int) -> None:
    """The name of each object, with a bar for its value."""
    longest = max([abs(mark.value) for mark in rows if mark.value is not None] or [1.0])
    valued = any(mark.value is not None for mark in rows)
    zero = left + 2.9
    for row, mark in enumerate(rows):
        y = height - 0.5 - ROW * row
        _draw_object(axes, np.array([left, y]), 0.26, mark)
        axes.text(left + 0.5, y, mark.label, ha="left", va="center", fontsize=9, color=INK)
        if mark.value is not None:
            length = 0.95 * mark.value / longest
            axes.fill([zero, zero + length, zero + length, zero], [y - 0.16, y - 0.16, y + 0.16, y + 0.16], mark.colour)
            text = f"{mark.value:+.2f}".replace("-", "−")
            axes.text(left + 4.05, y, text, ha="left", va="center", fontsize=8, color=INK)
    if valued:
        axes.plot([zero, zero], [height - 0.1, height - 0.9 - ROW * (len(rows) - 1)], color=FAINT, linewidth=0.8)


def _draw_signs(axes: Any, signs: tuple[float, float], left: float, ending: str, scale: float) -> None:
    """The meaning of disc and ring."""
    start, end = signs
    axes.plot(left, start, "o", color=INK, markersize=13 * scale, markeredgecolor="white")
    axes.text(left + 0.5, start, "the agent starts", ha="left", va="center", fontsize=9, color=INK)
    axes.plot(left, end, "o", color="none", markersize=20 * scale, markeredgecolor=INK, markeredgewidth=1.6)
    axes.text(left + 0.5, end, ending, ha="left", va="center", fontsize=9, color=INK)
