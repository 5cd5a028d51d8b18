"""Small pictures of instances as inline SVG, in the page's own colours; shapes are defined once and used by name.

Panels show their values as in `tasks.sraven_picture`: shape, size, shade and number of objects, then strips of boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from recombine.tasks.sraven.picture import SHAPES, arrange, relative_size

SIDE, GAP = 100, 8  # a panel, and between panels
ANSWER_TITLE = 22
WIDTH, HEIGHT = 220, 74  # of a line of values


def define_shapes() -> Markup:
    """Every shape as a path of unit size, to be used as #shape-0, #shape-1, ..."""
    paths = []
    for number, points in enumerate(SHAPES):
        step = 2 if len(points) > 40 else 1  # a circle of forty corners is round at this size
        corners = " ".join(f"{x:.2f},{-y:.2f}" for x, y in points[::step])
        paths.append(f'<polygon id="shape-{number}" points="{corners}"/>')
    return Markup(f'<svg class="defs" aria-hidden="true"><defs>{"".join(paths)}</defs></svg>')


def draw_grid(grid: Sequence[Sequence[Sequence[int]]], num_values: int) -> Markup:
    """All panels, the last one a question mark."""
    size = len(grid)
    side = size * SIDE + (size - 1) * GAP
    panels = []
    for row, column in ((row, column) for row in range(size) for column in range(size)):
        place = column * (SIDE + GAP), row * (SIDE + GAP)
        last = row == column == size - 1
        panels.append(_place(_question() if last else _panel(grid[row][column], num_values), *place))
    return _svg(side, side, panels, "puzzle", f"A puzzle of {size} by {size} panels, the last one missing.")


def draw_answer(panels: Sequence[tuple[str, Sequence[int], str]], num_values: int, grid_size: int) -> Markup:
    """Panels side by side, each under its title, framed by how good it is; as large as those of the grid."""
    drawn = []
    for number, (title, values, quality) in enumerate(panels):
        x = number * (SIDE + 3 * GAP)
        words = f'<text class="{quality}" x="{x + SIDE / 2}" y="14">{title}</text>'
        drawn += [words, _place(_panel(values, num_values, quality), x, ANSWER_TITLE)]
    spoken = "; ".join(f"{title}: {' '.join(map(str, values))}" for title, values, _ in panels)
    width = grid_size * SIDE + (grid_size - 1) * GAP
    return _svg(width, SIDE + ANSWER_TITLE, drawn, "answers", f"Last panel. {spoken}.")


def draw_values(examples: Sequence[float], truth: float, given: float) -> Markup:
    """The values of the examples as ticks from 0 to 1; the true value below the line, the network's above it."""
    left, line, span = 14, 37, WIDTH - 28

    def place(value: float) -> float:
        return left + span * min(1.0, max(0.0, value))

    quality = "good" if abs(given - truth) < 0.05 else "bad"
    ticks = "".join(f"M{place(value):.1f} {line - 6}v12" for value in examples)
    a, b = place(given), place(truth)
    return _svg(
        WIDTH,
        HEIGHT,
        [
            f'<path class="axis" d="M{left} {line}h{span}"/><path class="tick" d="{ticks}"/>',
            f'<path class="off {quality}" d="M{a:.1f} {line}H{b:.1f}"/>',
            f'<path class="{quality}" d="M{a:.1f} {line - 3}l-7 -12h14z"/>',
            f'<path class="plain" d="M{b:.1f} {line + 3}l-7 12h14z"/>',
            f'<text class="{quality}" x="{min(max(a, 32), WIDTH - 32):.1f}" y="13">network</text>',
            f'<text class="plain" x="{min(max(b, 24), WIDTH - 24):.1f}" y="{line + 31}">truth</text>',
        ],
        "values",
        f"The network says {given:.3f}, the truth is {truth:.3f}.",
    )


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


def _place(content: str, x: int, y: int) -> str:
    return f'<g transform="translate({x} {y})">{content}</g>'


def _svg(width: int, height: int, parts: Sequence[str], name: str, label: str) -> Markup:
    """Numbers and words of this file only, so nothing needs to be escaped."""
    start = f'<svg class="{name}" viewBox="-3 -3 {width + 6:g} {height + 6:g}" role="img" aria-label="{label}">'
    return Markup(start + "".join(parts) + "</svg>")
