"""SRAVEN puzzles as text and as pictures of Raven matrices, alone or with a model's answer for the report.

In a picture the positions of a panel are, in order, the shape, size, shade and number of its objects; each position
beyond the fourth is a strip of boxes at the bottom of the panel, one of them filled. With permuted features, a rule that
starts in the shapes of the first column may continue in the sizes of the second. This is the puzzle that a model sees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.tasks.sampling import Batch
from recombine.tasks.sraven.generator import RULES
from recombine.tasks.sraven.solver import Solution
from recombine.tasks.view import NUM_SHAPES, Card, arrange, assemble, move, relative_size

if TYPE_CHECKING:
    from recombine.tasks.sraven.task import SRaven

CHANNELS = ("shape", "size", "shade", "number")


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


SIDE, GAP = 100, 8  # size of a panel, and distance between panels
MAX_SHOWN = 3  # answers next to a puzzle
KEY, PITCH = 90, 26  # left end of the key of levels, and distance between its rows


def draw_puzzle(
    grid: Int[Tensor, "row column position"], num_values: int, *, solution: Solution, rules: Sequence[str]
) -> Markup:
    """The puzzle, the likeliest answers that fit, the rules, and how each position of a panel shows each value."""
    size, _, num_features = grid.shape
    columns = max(size, MAX_SHOWN)  # room for the key and the answers
    side, truth = columns * SIDE + (columns - 1) * GAP, grid[-1, -1].tolist()
    parts = _draw_panels(grid.tolist(), num_values)
    answers = list(zip(solution.answers.tolist(), solution.answer_probabilities.tolist(), strict=True))
    step = side / columns
    for number, (answer, probability) in enumerate(answers[:MAX_SHOWN]):
        title = ("answer" if answer == truth else "also fits") + (f", {probability:.1%}" if len(answers) > 1 else "")
        quality = "good" if answer == truth else ""
        panel = f'<g transform="scale({(step - 26) / SIDE:.3f})">{_panel(answer, num_values, quality)}</g>'
        parts.append(
            move(f'<text x="{(step - 26) / 2:.1f}" y="14">{title}</text>{move(panel, 0, 20)}', side + 40, step * number)
        )
    rest = [f"and {len(answers) - MAX_SHOWN} more"] if len(answers) > MAX_SHOWN else []
    for number, line in enumerate([*rest, *rules]):
        parts.append(f'<text x="{side + 85}" y="{side + 20 * number + 24}">{line}</text>')
    pitch = (side - KEY) / num_values
    for position in range(num_features):
        y = side + 20 + PITCH * position
        parts.append(f'<text x="{KEY / 2}" y="{y + 16}">{name_position(position)}</text>')
        for value in range(num_values):
            shown = _panel([*[None] * position, value], num_values)
            small = f'<g transform="scale({min(0.22, 0.9 * pitch / SIDE):.3f})">{shown}</g>'
            parts.append(move(small, KEY + round(value * pitch, 1), y))
    height = side + 20 + max(PITCH * num_features, 20 * len(rules) + 24)
    return assemble(
        side + 170, height, parts, "puzzle", f"A puzzle of {size} by {size} panels with the answers that fit."
    )


def name_position(position: int) -> str:
    """What shows a position of a panel."""
    return CHANNELS[position] if position < len(CHANNELS) else f"strip {position - len(CHANNELS) + 1}"


def _draw_panels(grid: Sequence[Sequence[Sequence[int]]], num_values: int) -> list[str]:
    """All panels, the last one a question mark."""
    if num_values > NUM_SHAPES:
        raise InputError(f"num_values is {num_values}: expected at most {NUM_SHAPES}, the number of shapes")
    panels = [_panel(values, num_values) for row in grid for values in row]
    frame = f'<rect class="panel asked" width="{SIDE}" height="{SIDE}" rx="6"/>'
    panels[-1] = f'{frame}<text class="question" x="{SIDE / 2}" y="{SIDE / 2 + 16}">?</text>'
    corners = itertools.product(range(0, len(grid) * (SIDE + GAP), SIDE + GAP), repeat=2)
    return [move(panel, x, y) for panel, (y, x) in zip(panels, corners, strict=True)]


ANSWER_TITLE = 22


def make_card(task: SRaven, batch: Batch, row: int, answer: Int[Tensor, " feature"]) -> Card:
    """The puzzle, the answer, which features are wrong, and whether several answers fit."""
    grid, truth, given = batch.info["grids"][row], batch.targets[row].tolist(), answer.tolist()
    solution = task.solve(grid[None])
    num_answers = int(solution.num_answers[0])
    remarks = []
    if given != truth:
        wrong = [name_position(position) for position in range(len(truth)) if given[position] != truth[position]]
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
    """The panels of a puzzle, without an answer."""
    size = len(grid)
    side = size * SIDE + (size - 1) * GAP
    label = f"A puzzle of {size} by {size} panels, the last one missing."
    return assemble(side, side, _draw_panels(grid, num_values), "puzzle", label)


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


def _panel(values: Sequence[int | None], num_values: int, quality: str = "") -> str:
    shape, size, shade, number = [*values, *[None] * 4][:4]
    foot = 10 * max(0, len(values) - 4)
    num_across = math.ceil(math.sqrt(num_values)) if number is not None else 1
    pitch = (0.95 * SIDE - foot) / num_across
    radius = 0.39 * pitch * relative_size(size, num_values)
    level = 0.35 if shade is None else shade / (num_values - 1)
    style = f'fill-opacity="{0.95 * level:.2f}" stroke-width="{1.4 / radius:.3f}"'
    objects = [
        f'<use href="#shape-{shape or 0}" transform="translate({SIDE / 2 + x * pitch:.1f} '
        f'{(SIDE - foot) / 2 - y * pitch:.1f}) scale({radius:.2f})" {style}/>'
        for x, y in arrange(1 if number is None else number + 1)
    ]
    strips = [_strip(value, num_values, SIDE - foot + 10 * strip) for strip, value in enumerate(values[4:])]
    return f'<rect class="panel {quality}" width="{SIDE}" height="{SIDE}" rx="6"/>' + "".join(objects + strips)


def _strip(value: int | None, num_values: int, y: int) -> str:
    box = 0.8 * SIDE / num_values
    return "".join(
        f'<rect class="box" x="{10 + level * box:.1f}" y="{y}" width="{box:.1f}" height="6" '
        f'fill-opacity="{int(level == value)}"/>'
        for level in range(num_values)
    )
