"""Episodes of the grid worlds: the map as text, and as a picture with the expert's path.

In a picture the shape of an object shows its kind (with a dot beyond the sixteenth kind). Arrows are the expert's steps.
They are shifted to the right of their direction, so that a path and its return stay visible, and get darker over time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from markupsafe import Markup, escape
from torch import Tensor

from recombine.tasks.view import NUM_SHAPES, assemble, mix_colours, move

SIDE, LARGEST = 400, 48  # size of a map, and maximum size of a cell
ASIDE = 0.16  # offset of a step from the middle of the cell, in cells
TOP, ROW = 26, 40  # height of the title, and of a row of the key
EARLY_TO_LATE = ("#faba73", "#993308")  # first and last step of a walk


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
    *,
    walls: Bool[Tensor, "height width"],
    walk: Sequence[int],
    marks: Sequence[Mark],
    title: str,
    ending: str,
    shaded: Sequence[int] = (),
) -> Markup:
    """An episode: the map with the expert's path, and a key of the objects."""
    height, width = walls.shape
    cell = min(LARGEST, SIDE / height)

    def centre(number: int) -> Float[np.ndarray, " 2"]:
        return np.array([number % width + 0.5, number // width + 0.5])

    squares = {"shade": shaded, "wall": walls.flatten().nonzero()[:, 0].tolist()}
    drawn = [f'<rect class="floor" width="{width}" height="{height}"/>']
    for name, cells in squares.items():
        path = "".join(f"M{number % width} {number // width}h1v1h-1z" for number in cells)
        drawn.append(f'<path class="{name}" d="{path}"/>')
    lines = "".join([f"M{x} 0v{height}" for x in range(1, width)] + [f"M0 {y}h{width}" for y in range(1, height)])
    drawn.append(f'<path class="lines" d="{lines}"/>')
    for mark in marks:
        x, y = centre(mark.cell).tolist()
        drawn.append(_draw_object(mark, x, y, 0.3))
    drawn += _draw_walk([centre(number) for number in walk])
    key, bottom = _draw_key(marks, ending)
    parts = [
        f'<text x="0" y="14">{escape(title)}</text>',
        move(f'<g transform="scale({cell:g})">{"".join(drawn)}</g>', 0, TOP),
        move(key, width * cell + 24, TOP),
    ]
    return assemble(max(width * cell + 270, 7 * len(title)), TOP + max(height * cell, bottom), parts, "map", title)


def _draw_object(mark: Mark, x: float, y: float, radius: float) -> str:
    shape = f'<use href="#shape-{mark.kind % NUM_SHAPES}" transform="scale({radius:g})" fill="{mark.colour}"/>'
    dots = (
        f'<circle class="dot" cx="{0.4 * radius * dot:g}" r="{0.13 * radius:g}"/>'
        for dot in range(mark.kind // NUM_SHAPES)
    )
    return f'<g transform="translate({x:g} {y:g})">{shape}{"".join(dots)}</g>'


def _draw_walk(points: Sequence[Float[np.ndarray, " 2"]]) -> list[str]:
    """The start as a disc, each step as a line with a head, the end as a ring."""
    steps = [(start, end) for start, end in itertools.pairwise(points) if (end != start).any()]  # none into a wall
    asides = [ASIDE * np.array([-(end - start)[1], (end - start)[0]]) for start, end in steps]
    drawn, last = [], points[0]
    for number, (start, end) in enumerate(steps):
        colour = mix_colours(EARLY_TO_LATE, number / max(1, len(steps) - 1))
        begin = start + asides[number] + (_turn(asides[number - 1], asides[number]) if number else 0)
        tip = end + asides[number]
        if number + 1 < len(steps):
            tip = tip + _turn(asides[number + 1], asides[number])
        # from the tip of the last step, which is elsewhere if the path turns back
        drawn.append(f'<path class="step" stroke="{colour}" d="M{_write(last)}L{_write(begin)}L{_write(tip)}"/>')
        ahead, middle, last = 0.13 * (end - start), (start + end) / 2 + asides[number], tip
        across = 0.62 * np.array([-ahead[1], ahead[0]])
        head = f"M{_write(middle + ahead)}L{_write(middle - ahead + across)}L{_write(middle - ahead - across)}z"
        drawn.append(f'<path fill="{colour}" d="{head}"/>')
    (x, y), (end_x, end_y) = points[0].tolist(), points[-1].tolist()
    disc, ring = (
        f'<circle class="start" cx="{x}" cy="{y}" r="0.14"/>',
        f'<circle class="end" cx="{end_x}" cy="{end_y}" r="0.3"/>',
    )
    return [*drawn, disc, ring]


def _write(point: Float[np.ndarray, " 2"]) -> str:
    return f"{point[0]:.3f} {point[1]:.3f}"


def _turn(other: Float[np.ndarray, " 2"], own: Float[np.ndarray, " 2"]) -> Float[np.ndarray, " 2"]:
    """How far a step's line is shortened or extended where it meets another step at a right angle."""
    return other if abs(other @ own) < 1e-9 else 0 * own


def _draw_key(marks: Sequence[Mark], ending: str) -> tuple[str, int]:
    """The name of each object, with a bar for its value; then the meaning of disc and ring. Also the height."""
    rows = sorted(marks, key=lambda mark: -(mark.value or 0))
    if not any(mark.value for mark in rows):  # once per kind
        rows = list({mark.label: mark for mark in rows}.values())
    longest = max((abs(mark.value) for mark in rows if mark.value is not None), default=0.0) or 1.0
    drawn = []
    for row, mark in enumerate(rows):
        y = ROW * (row + 0.5)
        drawn += [_draw_object(mark, 10.0, y, 12.0), f'<text x="32" y="{y + 5}">{escape(mark.label)}</text>']
        if mark.value is not None:
            length = 45 * mark.value / longest
            drawn.append(
                f'<rect x="{140 + min(0.0, length):.1f}" y="{y - 7}" width="{abs(length):.1f}" height="14" fill="{mark.colour}"/>'
                f'<path class="axis" d="M140 {y - 14}v28"/><text x="195" y="{y + 5}">{f"{mark.value:+.2f}".replace("-", "−")}</text>'
            )
    for shape, text in (('class="start" r="7"', "the agent starts"), ('class="end" r="12" stroke-width="1.6"', ending)):
        y = ROW * (len(rows) + 0.5 + (text == ending))
        drawn.append(f'<circle {shape} cx="10" cy="{y}"/><text x="32" y="{y + 5}">{escape(text)}</text>')
    return "".join(drawn), ROW * (len(rows) + 2)
