"""SRAVEN puzzles as text and as drawings of Raven matrices.

In a drawing the positions of a panel are, in order, the shape, size, shade and number of its objects; each position
beyond the fourth is a strip of boxes at the bottom of the panel, one of them filled. A key shows every level. With
permuted features, a rule that starts in the shapes of the first column may continue in the sizes of the second. This is
the puzzle that a model sees.

A puzzle and a model's answer for the report, drawn as in `picture`: shape, size, shade, number, then strips of boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor

from recombine.foundation.errors import InputError, check_choice
from recombine.tasks.batch import Batch
from recombine.tasks.sraven.generator import RULES
from recombine.tasks.sraven.solver import Solution
from recombine.tasks.view import (
    ACCENT,
    FAINT,
    INK,
    METADATA,
    SHAPES,
    Card,
    Point,
    arrange,
    assemble,
    move,
    relative_size,
    save_figure,
)

if TYPE_CHECKING:
    from recombine.tasks.sraven.task import SRaven

CHANNELS = ("shape", "size", "shade", "number")
MAX_SHOWN = 3  # answers next to a drawing
INCHES = 1.5  # per panel


def write_puzzle(
    grid: Int[Tensor, "row column position"],
    rules: Int[Tensor, " feature"],
    permutations: Int[Tensor, "column position"],
    solution: Solution,
) -> str:
    """The panels, their latents, and every answer that fits the visible panels, with its posterior."""
    width = len(str(int(grid.max())))

    def join(values: Sequence[int | str]) -> str:
        return " ".join(str(value).rjust(width) for value in values)

    rows = [[join(panel) for panel in row] for row in grid.tolist()]
    rows[-1][-1] = join("?" * grid.shape[2])
    border = "\n" + "─┼─".join("─" * len(panel) for panel in rows[0]) + "\n"
    lines = [border.join(" │ ".join(row) for row in rows), "", "each feature, its position in each column, its rows:"]

    positions = permutations.argsort(dim=1)
    for feature, rule in enumerate(rules.tolist()):
        where = positions[:, feature]
        values = grid.gather(2, where[None, :, None].expand(len(grid), -1, 1))[..., 0].tolist()
        chain = " ".join(str(position + 1) for position in where.tolist())
        lines.append(f"  {feature + 1}   at {chain}   {'  |  '.join(map(join, values))}   {RULES[rule]}")

    truth = grid[-1, -1].tolist()
    lines += ["", "every answer that fits, with its posterior:"]
    for answer, probability in zip(solution.answers.tolist(), solution.answer_probabilities.tolist(), strict=True):
        lines.append(f"  {join(answer)}   {probability:.4f}{'   the true one' if answer == truth else ''}")
    return "\n".join(lines)


def draw_puzzle(
    grid: Int[Tensor, "row column position"],
    num_values: int,
    path: Path | str,
    *,
    solution: Solution | None = None,
    caption: str = "",
) -> None:
    """Write a drawing as PNG or SVG. With a solution, it also shows the answers that fit, the likeliest first."""
    from matplotlib.figure import Figure

    path = Path(path)
    check_choice("picture format", path.suffix, METADATA)
    if num_values > len(SHAPES):
        raise InputError(f"num_values is {num_values}: expected at most {len(SHAPES)}, the number of shapes")
    grid_size, num_features = grid.shape[1:]
    width, bottom = grid_size + (1.5 if solution else 0.1), -0.45 - 0.36 * num_features
    figure = Figure(figsize=(INCHES * (width + 0.1), INCHES * (grid_size + 0.1 - bottom)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.1, width), ylim=(bottom, grid_size + 0.1), aspect="equal")
    axes.axis("off")
    for row, column in np.ndindex(grid_size, grid_size):
        last = row == column == grid_size - 1
        corner = np.array([column, grid_size - 1.0 - row])
        _draw_panel(axes, corner, None if last else grid[row, column].tolist(), num_values)
    if solution:
        _draw_answers(axes, solution, grid[-1, -1].tolist(), grid_size, num_values)
    _draw_key(axes, num_features, num_values, grid_size)
    axes.text(grid_size + 0.44, -0.17, caption, ha="left", va="top", fontsize=9, color=INK, linespacing=1.7)
    save_figure(figure, path)


def _draw_answers(axes: Any, solution: Solution, truth: list[int], grid_size: int, num_values: int) -> None:
    """The likeliest answers, one above the other."""
    answers = list(zip(solution.answers.tolist(), solution.answer_probabilities.tolist(), strict=True))
    shown = answers[: min(MAX_SHOWN, grid_size)]
    scale, step = (1.0, 1.3) if len(shown) < grid_size else (0.8, 1.02)
    for number, (answer, probability) in enumerate(shown):
        x, y = grid_size + 0.4, grid_size / 2 - 0.6 + step * ((len(shown) - 1) / 2 - number)
        colour = ACCENT if answer == truth else FAINT
        _draw_panel(axes, np.array([x, y]), answer, num_values, edge=colour, scale=scale)
        label = ("answer" if answer == truth else "also fits") + (f", {probability:.1%}" if len(answers) > 1 else "")
        axes.text(x + 0.5, y + 0.51 + scale / 2, label, ha="center", va="bottom", fontsize=9, color=colour)
    if len(answers) > len(shown):
        rest = f"and {len(answers) - len(shown)} more"
        axes.text(x + 0.5, y + 0.49 - scale / 2, rest, ha="center", va="top", fontsize=9, color=FAINT)


def _draw_panel(
    axes: Any,
    corner: Point,
    values: list[int] | None,
    num_values: int,
    *,
    edge: str = INK,
    scale: float = 1.0,
) -> None:
    """A panel in the unit square with this lower left corner; without values, the missing panel."""
    side = 0.92 * scale
    corner = corner + (1 - side) / 2
    frame = corner + side * np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
    axes.fill(*frame.T, facecolor="white", edgecolor=edge, linewidth=1.3)
    if values is None:
        axes.text(*corner + side * np.array([0.5, 0.47]), "?", ha="center", va="center", fontsize=44, color=ACCENT)
        return
    shape, size, shade, number = [*values, *[None] * 4][:4]
    foot = 0.1 * max(0, len(values) - 4)
    num_across = math.ceil(math.sqrt(num_values)) if number is not None else 1
    pitch = (0.95 - foot) / num_across
    centre = corner + side * np.array([0.5, 0.5 + foot / 2])
    for offset in arrange(1 if number is None else number + 1) * pitch:
        radius = 0.39 * pitch * relative_size(size, num_values)
        _draw_object(axes, centre + side * offset, side * radius, shape or 0, shade, num_values)
    for strip, value in enumerate(reversed(values[4:])):
        _draw_strip(axes, corner + side * np.array([0.1, 0.05 + 0.1 * strip]), 0.8 * side, value, num_values)


def _draw_object(axes: Any, centre: Point, radius: float, shape: int, shade: int | None, num_values: int) -> None:
    level = 0.35 if shade is None else shade / (num_values - 1)
    outline = centre + radius * SHAPES[shape]
    axes.fill(*outline.T, facecolor=str(1 - 0.95 * level), edgecolor=INK, linewidth=0.9, joinstyle="miter")


def _draw_strip(axes: Any, corner: Point, width: float, value: int, num_values: int) -> None:
    box = width / num_values
    for level in range(num_values):
        frame = corner + np.array([level * box, 0]) + np.array([(0, 0), (box, 0), (box, 0.06), (0, 0.06)])
        axes.fill(*frame.T, facecolor=INK if level == value else "white", edgecolor=FAINT, linewidth=0.7)


def _draw_key(axes: Any, num_features: int, num_values: int, grid_size: int) -> None:
    """Below the puzzle, how each position shows each value."""
    left = 0.62
    pitch = (grid_size - left) / num_values
    side = min(0.34, 0.95 * pitch)
    dot = side / math.ceil(math.sqrt(num_values))
    for value in range(num_values):
        axes.text(left + (value + 0.5) * pitch, -0.17, str(value), ha="center", va="center", fontsize=8, color=FAINT)
    for position in range(num_features):
        y = -0.45 - 0.36 * position
        name = CHANNELS[position] if position < len(CHANNELS) else f"strip {position - len(CHANNELS) + 1}"
        axes.text(0.04, y, name, ha="left", va="center", fontsize=9, color=INK)
        for value in range(num_values):
            centre = np.array([left + (value + 0.5) * pitch, y])
            if position == 3:
                for offset in arrange(value + 1) * dot:
                    _draw_object(axes, centre + offset, 0.3 * dot, 0, num_values - 1, num_values)
            elif position > 3:
                _draw_strip(axes, centre - np.array([0.4 * pitch, 0.03]), 0.8 * pitch, value, num_values)
            else:
                shape, size, shade = (value if position == channel else None for channel in range(3))
                radius = 0.4 * side * relative_size(size, num_values)
                _draw_object(axes, centre, radius, shape or 0, shade, num_values)


SIDE, GAP = 100, 8  # size of a panel, and distance between panels
ANSWER_TITLE = 22


def make_card(task: SRaven, batch: Batch, row: int, answer: Int[Tensor, " feature"]) -> Card:
    """The puzzle, the answer, which features are wrong, and whether several answers fit."""
    if task.num_values > len(SHAPES):
        raise InputError(f"num_values is {task.num_values}: expected at most {len(SHAPES)}, the number of shapes")
    grid, truth, given = batch.info["grids"][row], batch.targets[row].tolist(), answer.tolist()
    solution = task.solve(grid[None])
    num_answers = int(solution.num_answers[0])
    remarks = []
    if given != truth:
        names = [*CHANNELS, *(f"strip {number}" for number in range(1, task.num_features))]
        wrong = [names[position] for position in range(len(truth)) if given[position] != truth[position]]
        remarks.append(f"wrong in {' and '.join(wrong) if len(wrong) < 3 else ', '.join(wrong)}")
    if num_answers > 1:
        fits = given in solution.answers.tolist()
        also = "; the network’s is one of them" if fits and given != truth else ""
        remarks.append(f"ambiguous: {num_answers} answers fit{also}")
    panels = [("network", given, "good" if given == truth else "bad")]
    panels += [("truth", truth, "plain")] if given != truth else []
    return Card(
        picture=draw_grid(grid.tolist(), task.num_values),
        answers=draw_answer(panels, task.num_values, task.grid_size),
        composition=tuple(RULES[rule] for rule in batch.latents[row].tolist()),
        remarks=tuple(remarks),
    )


def draw_grid(grid: Sequence[Sequence[Sequence[int]]], num_values: int) -> Markup:
    """All panels, the last one a question mark."""
    size = len(grid)
    side = size * SIDE + (size - 1) * GAP
    panels = []
    for row, column in ((row, column) for row in range(size) for column in range(size)):
        corner = column * (SIDE + GAP), row * (SIDE + GAP)
        last = row == column == size - 1
        panels.append(move(_question() if last else _panel(grid[row][column], num_values), *corner))
    return assemble(side, side, panels, "puzzle", f"A puzzle of {size} by {size} panels, the last one missing.")


def draw_answer(panels: Sequence[tuple[str, Sequence[int], str]], num_values: int, grid_size: int) -> Markup:
    """Panels side by side, each with its title and a frame that shows its quality; as large as those of the grid."""
    drawn = []
    for number, (title, values, quality) in enumerate(panels):
        x = number * (SIDE + 3 * GAP)
        words = f'<text class="{quality}" x="{x + SIDE / 2}" y="14">{title}</text>'
        drawn += [words, move(_panel(values, num_values, quality), x, ANSWER_TITLE)]
    spoken = "; ".join(f"{title}: {' '.join(map(str, values))}" for title, values, _ in panels)
    width = grid_size * SIDE + (grid_size - 1) * GAP
    return assemble(width, SIDE + ANSWER_TITLE, drawn, "answers", f"Last panel. {spoken}.")


def _panel(values: Sequence[int], num_values: int, quality: str = "") -> str:
    shape, size, shade, number = [*values, *[None] * 4][:4]
    foot = 10 * max(0, len(values) - 4)
    num_across = math.ceil(math.sqrt(num_values)) if number is not None else 1
    pitch = (0.95 * SIDE - foot) / num_across
    radius = 0.39 * pitch * relative_size(size, num_values)
    level = 0.35 if shade is None else shade / (num_values - 1)
    style = f'fill-opacity="{0.95 * level:.2f}" stroke-width="{1.4 / radius:.3f}"'
    objects = [
        f'<use href="#shape-{shape}" transform="translate({SIDE / 2 + x * pitch:.1f} '
        f'{(SIDE - foot) / 2 - y * pitch:.1f}) scale({radius:.2f})" {style}/>'
        for x, y in arrange(1 if number is None else number + 1)
    ]
    strips = [_strip(value, num_values, SIDE - foot + 10 * strip) for strip, value in enumerate(values[4:])]
    return f'<rect class="panel {quality}" width="{SIDE}" height="{SIDE}" rx="6"/>' + "".join(objects + strips)


def _strip(value: int, num_values: int, y: int) -> str:
    box = 0.8 * SIDE / num_values
    return "".join(
        f'<rect class="box" x="{10 + level * box:.1f}" y="{y}" width="{box:.1f}" height="6" '
        f'fill-opacity="{int(level == value)}"/>'
        for level in range(num_values)
    )


def _question() -> str:
    frame = f'<rect class="panel asked" width="{SIDE}" height="{SIDE}" rx="6"/>'
    return f'{frame}<text class="question" x="{SIDE / 2}" y="{SIDE / 2 + 16}">?</text>'
