"""Small pictures as inline SVG, in the colours of the page; shapes are defined once and used by name."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from recombine.drawing.shapes import SHAPES


def define_shapes() -> Markup:
    """Every shape as a path of unit size, to be used as #shape-0, #shape-1, ..."""
    paths = []
    for number, points in enumerate(SHAPES):
        step = 2 if len(points) > 40 else 1  # a circle of forty corners is round at this size
        corners = " ".join(f"{x:.2f},{-y:.2f}" for x, y in points[::step])
        paths.append(f'<polygon id="shape-{number}" points="{corners}"/>')
    return Markup(f'<svg class="defs" aria-hidden="true"><defs>{"".join(paths)}</defs></svg>')


def move(content: str, x: float | int, y: float | int) -> str:
    """A part of a picture, moved to (x, y)."""
    return f'<g transform="translate({x} {y})">{content}</g>'


def assemble(width: float | int, height: float | int, parts: Sequence[str], name: str, label: str) -> Markup:
    """The parts as one picture; parts, name and label are made by the package and need no escaping."""
    start = f'<svg class="{name}" viewBox="-3 -3 {width + 6:g} {height + 6:g}" role="img" aria-label="{label}">'
    return Markup(start + "".join(parts) + "</svg>")
