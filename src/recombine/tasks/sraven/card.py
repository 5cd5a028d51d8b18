"""A puzzle and a model's answer for the report, drawn as in `picture`: shape, size, shade, number, then strips of boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor

from recombine.drawing.card import Card
from recombine.drawing.shapes import SHAPES, arrange, relative_size
from recombine.drawing.svg import assemble, move
from recombine.errors import InputError
from recombine.tasks.base import Batch
from recombine.tasks.sraven.picture import CHANNELS
from recombine.tasks.sraven.rules import RULES

if TYPE_CHECKING:
    from recombine.tasks.sraven.task import SRaven

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
