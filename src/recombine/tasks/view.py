"""How instances are drawn: small SVG pictures in the colours of the report, and the palette that charts share.

A picture is made of SVG elements whose classes `RULES` styles. The report shows pictures inline; `write_picture` saves one as
a file. Shapes that are easy to distinguish are defined once and used by name, as `#shape-0` to `#shape-15`. `draw_tokens`
shows a sequence as a map of colours: a column per token, a row per feature, with what the network answers framed.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape

from recombine.foundation.errors import check_choice
from recombine.foundation.files import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# objects of maps; values of 0
ACCENT, GOOD, BAD, PLAIN = "#c2410c", "#0f766e", "#be4b3b", "#8d97a3"
FLOOR = "#f6f4ef"

# charts: grid lines, the track from chance to ceiling, secondary text, text
GRID, TRACK, QUIET, DARK = "#e3e5e4", "#c9cecd", "#767f88", "#333f48"
ATTENTION_COLOURS = {"softmax": "#4477aa", "linear": "#ccaa33", "hyla": "#cc3366"}

# Series of a page and of printed figures. They can be distinguished with every kind of colour vision (after Okabe and Ito),
# and have enough contrast with their background.
LIGHT_PALETTE = ("#0072b2", "#d55e00", "#00855f", "#b8578c", "#8c6a00", "#5f4bb6")
DARK_PALETTE = ("#56b4e9", "#f58549", "#2cc295", "#e7a3cb", "#e3bc4f", "#b7a6f2")
COLOUR_SCALES = {  # classes of points; low to high; own and swapped-in; opposite to alike
    "light": {
        "class": (*LIGHT_PALETTE, DARK, "#c2a100", "#3aa6a0", "#a33b3b", "#93b22e", "#8a8f98"),
        "ramp": ("#f0c04a", "#ee8250", "#cf4b78", "#84319c", "#2b1a78"),
        "follow": ("#4d4a8f", "#ee8250"),
        "diverging": ("#1d6fa5", "#9cc4dd", "#f1f1ee", "#f2b48a", "#c94f12"),
    },
    "dark": {
        "class": (*DARK_PALETTE, "#d5dbe0", "#fff07a", "#8be0dc", "#ff8f8f", "#b9d95c", "#8d96a0"),
        "ramp": ("#5a3fd0", "#a24fc9", "#e2628c", "#f7985f", "#fbe07a"),
        "follow": ("#8f86e0", "#f7985f"),
        "diverging": ("#4aa8e0", "#2f5f7d", "#262b30", "#8a4f2c", "#f58549"),
    },
}

METADATA: dict[str, dict[str, Any]] = {".png": {"Software": None}, ".svg": {"Date": None}}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "recombine",
}


def make_figure(width: float | int, height: float | int) -> Figure:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def escape_text(text: str) -> str:
    """Escape text: Matplotlib reads a formula between dollars and hides a label that starts with an underscore."""
    return "\u200b" + text.replace("$", r"\$")


@contextmanager
def canvas(path: Path, width: float | int, height: float | int) -> Iterator[Figure]:
    """Context manager for a figure that is written to a PNG file at the end."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = make_figure(width, height)
        yield figure
        write_output(path, render_figure(figure, ".png", dpi=160))


def render_figure(figure: Figure, suffix: str, dpi: int = 150) -> bytes:
    """The bytes of a PNG or SVG file."""
    content = io.BytesIO()
    figure.savefig(content, format=suffix[1:], dpi=dpi, metadata=METADATA[suffix])
    return content.getvalue()


Point = Float[np.ndarray, " 2"]
Points = Float[np.ndarray, "point 2"]


def relative_size(size: int | None, num_values: int) -> float:
    """Sizes from 0.3 to 1 with equal ratios, which look evenly spaced."""
    return 0.75 if size is None else 0.3 ** (1 - size / (num_values - 1))


def arrange(number: int) -> Points:
    """Positions for a number of objects around the origin, in rows of nearly equal length."""
    num_rows = round(math.sqrt(number))
    ends = [round(number * row / num_rows - 1e-9) for row in range(num_rows + 1)]
    places = []
    for row, (start, end) in enumerate(itertools.pairwise(ends)):
        places += [(place - (end - start - 1) / 2, (num_rows - 1) / 2 - row) for place in range(end - start)]
    return np.array(places, dtype=float)


def _star(*radii: float, turn: float = 90.0) -> Points:
    """Points at these radii, at equal angles counter-clockwise from `turn` degrees."""
    angles = np.radians(turn) + np.arange(len(radii)) * 2 * np.pi / len(radii)
    return np.array(radii)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _normalise(points: Points) -> Points:
    """Scale between equal radius and equal area, so that shapes of the same size look equally large."""
    x, y = points.T
    area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    return points / math.sqrt(np.linalg.norm(points, axis=1).max() * math.sqrt(area / math.pi))


NUM_SHAPES = 16


@cache
def list_shapes() -> tuple[Points, ...]:
    """The shapes, most different ones first."""
    arc = np.linspace(0, np.pi, 40)
    half = np.stack([np.cos(arc), np.sin(arc) - 0.4], axis=1)
    crescent = np.concatenate([_star(*[1.0] * 80, turn=50.0)[:62], 0.25 + _star(*[0.82] * 80, turn=50.0)[61:0:-1]])
    cross = np.array([(1, 3), (1, 1), (3, 1), (3, -1), (1, -1), (1, -3)])
    cross = np.concatenate([cross, -cross]).astype(float)
    arrow = np.array([(0, 1), (1, 0), (0.4, 0), (0.4, -1), (-0.4, -1), (-0.4, 0), (-1, 0)])
    chevron = np.array([(0, 0.8), (1, -0.1), (1, -0.9), (0, 0), (-1, -0.9), (-1, -0.1)])
    turn = np.array([(1, -1), (1, 1)]) / math.sqrt(2)
    shapes = [
        _star(*[1.0] * 80),
        _star(1.0, 1.0, 1.0),
        _star(1.0, 1.0, 1.0, 1.0, turn=45.0),
        _star(*[1.0, 0.42] * 5),
        cross,
        _star(1.0, 0.55, 1.0, 0.55),
        half,
        _star(*[1.0] * 5),
        arrow,
        _star(*[1.0, 0.35] * 4),
        chevron,
        cross @ turn,
        crescent,
        _star(1.0, 1.0, 1.0, turn=-90.0),
        _star(*[1.0, 0.7] * 9),
        np.array([(-1, -0.5), (0.5, -0.5), (1, 0.5), (-0.5, 0.5)]),
    ]
    return tuple(_normalise(points) for points in shapes)


# styles of pictures, on variables that the report and `write_picture` define
RULES = """
:is(.puzzle, .answers, .values, .tokens) { fill: var(--ink); stroke: none; font: 13px var(--font); text-anchor: middle; }
:is(.puzzle, .answers) use { fill: var(--ink); stroke: var(--ink); }
.panel { fill: var(--paper); stroke: var(--track); stroke-width: 1.5; }
.panel.good { stroke: var(--good); stroke-width: 3; }
.panel.bad { stroke: var(--bad); stroke-width: 3; }
.panel.asked { stroke-dasharray: 5 5; }
.question { fill: var(--ink-faint); font-size: 46px; }
.box { fill: var(--ink); stroke: var(--ink-faint); stroke-width: .7; }
.values { width: 100%; }
.answers text { font-size: 17px; }
:is(.answers, .values, .tokens) text.good, .values path.good { fill: var(--good); }
:is(.answers, .values, .tokens) text.bad, .values path.bad { fill: var(--bad); }
:is(.answers, .values, .tokens) text.plain, .values path.plain { fill: var(--ink-soft); }
.values .axis { fill: none; stroke: var(--ink-faint); }
.values .tick { fill: none; stroke: var(--track); stroke-width: 1.5; }
.values .off { fill: none; stroke-width: 3; }
.tokens .left { text-anchor: start; }
.tokens .right { text-anchor: end; }
.tokens :is(.parts, .range) { fill: var(--ink-faint); font-size: 11px; }
.map { fill: var(--ink); font: 13px var(--font); }
.map .floor { fill: var(--paper); stroke: var(--ink-soft); stroke-width: .06; }
.map .wall { fill: var(--ink-soft); }
.map .shade { fill: var(--bad); fill-opacity: .12; }
.map .lines { fill: none; stroke: var(--track); stroke-width: .02; }
.map .axis { stroke: var(--track); }
.map .dot { fill: var(--paper); }
.map .step { fill: none; stroke-width: .05; stroke-linecap: round; stroke-linejoin: round; }
.map .end { fill: none; stroke: var(--ink); }
.map .end:not([stroke-width]) { stroke-width: .04; }
.tokens .divider { stroke: var(--ink); stroke-width: 1.5; }
.tokens .frame { fill: none; stroke: var(--bad); stroke-width: 2.5; }
"""
VARIABLES = (
    "--paper: #fbfbf9; --ink: #1d2125; --ink-soft: #4b535b; --ink-faint: #767f88; --track: #c9cecd; --good: #00734f; "
    "--bad: #b13c00; --font: system-ui, sans-serif;"
)


def define_shapes() -> Markup:
    """What inline pictures need once per page: their styles, and every shape as a path of unit size."""
    paths = []
    for number, points in enumerate(list_shapes()):
        step = 2 if len(points) > 40 else 1  # a circle of forty corners is round at this size
        corners = " ".join(f"{x:.2f},{-y:.2f}" for x, y in points[::step])
        paths.append(f'<polygon id="shape-{number}" points="{corners}"/>')
    return Markup(f'<svg class="defs" aria-hidden="true"><style>{RULES}</style><defs>{"".join(paths)}</defs></svg>')


def write_picture(path: Path, picture: Markup) -> None:
    """Write a picture as an SVG file that needs nothing else."""
    check_choice("picture format", path.suffix, (".svg",))
    start, end, content = str(picture).partition(">")
    start = start.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" style="background: var(--paper)"', 1)
    width, height = re.findall(r"[\d.]+", start.partition("viewBox=")[2])[2:4]
    size = f' width="{width}" height="{height}"'
    write_output(path, f"{start}{size}{end}<style>:root {{ {VARIABLES} }}</style>{define_shapes()}{content}\n".encode())


def move(content: str, x: float | int, y: float | int) -> str:
    """A part of a picture, moved to (x, y)."""
    return f'<g transform="translate({x} {y})">{content}</g>'


def assemble(width: float | int, height: float | int, parts: Sequence[str], name: str, label: str) -> Markup:
    """The SVG elements `parts` as one picture, whose class is `name`; `label` is its description for screen readers."""
    start = f'<svg class="{name}" viewBox="-3 -3 {width + 6:g} {height + 6:g}" role="img" aria-label="{escape(label)}">'
    return Markup(start + "".join(parts) + "</svg>")


@dataclass(frozen=True, kw_only=True)
class Card:
    """`picture` and `answers` are HTML; everything else is text, which the page escapes."""

    picture: Markup
    composition: tuple[str, ...]
    joined_by: str = " + "  # between the modules of the composition
    answers: Markup = field(default_factory=Markup)
    remarks: tuple[str, ...] = ()


def use_minus_signs(text: str) -> str:
    """The sign of negative numbers as in all other output."""
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)


class Panel(NamedTuple):
    """Some features of every token. `asked` is the range of tokens whose values are predicted, if any."""

    name: str
    values: Float[np.ndarray, "feature token"]
    rows: tuple[str, ...] = ()
    asked: range | None = None


class TokenView(NamedTuple):
    """An instance as a sequence of tokens; `parts` are the names and numbers of its tokens, `framed` the predicted ones."""

    title: str
    panels: Sequence[Panel]
    parts: Sequence[tuple[str, int]]
    framed: str = "to be predicted"


NUM_WRITTEN = 8  # numbers per line of text, over all panels
FIRST_WRITTEN, LAST_WRITTEN = 8, 3  # tokens of a long sequence


def write_tokens(view: TokenView) -> str:
    """The first and last tokens, one per line, with predicted values in brackets; a panel of equal tokens is written once."""
    num_tokens = view.panels[0].values.shape[1]
    lines = [view.title]
    varying: list[Panel] = []
    for panel in view.panels:
        if num_tokens > 1 and panel.asked is None and (panel.values == panel.values[:, :1]).all():
            numbers = " ".join(f"{value:.3g}" for value in panel.values[:, 0])
            lines += [f"{panel.name}:", textwrap.fill(textwrap.shorten(numbers, 400, placeholder=" …"), 72)]
        else:
            varying.append(panel)
    count = NUM_WRITTEN // max(1, len(varying))

    def write(panel: Panel, token: int) -> str:
        numbers = "".join(f"{value:7.2f}" for value in panel.values[:count, token]) + " …" * (len(panel.values) > count)
        return f"  [{numbers.lstrip():>{len(numbers)}}]" if token in (panel.asked or ()) else f"   {numbers} "

    tokens = [f"{token + 1:>4}" + "".join(write(panel, token) for panel in varying) for token in range(num_tokens)]
    if num_tokens > FIRST_WRITTEN + LAST_WRITTEN:
        tokens[FIRST_WRITTEN:-LAST_WRITTEN] = ["   …"]
    names = ("".join(f"{name:>7}" for name in panel.rows[:count]) or f"  {panel.name}" for panel in varying)
    header = "".join(f"   {name:<{len(write(panel, 0)) - 3}}" for name, panel in zip(names, varying, strict=True))
    return "\n".join([*lines, f"    {header}".rstrip(), *(line.rstrip() for line in tokens), f"[ ] {view.framed}"])


WIDTH, MARGIN, ROW, TITLE, LINE = 560, 30, 12, 22, 17  # of a map, left of it, of a row, above a map, of text
MIN_HEIGHT = 36
MAX_NAMES = 8  # more rows than that are not named one by one
NUM_LEVELS = 64  # of colour


def draw_tokens(view: TokenView) -> Markup:
    """The panels of a sequence, one below the other."""
    lines = textwrap.wrap(view.title, 80)
    drawn = [f'<text class="left" y="{12 + LINE * number}">{escape(line)}</text>' for number, line in enumerate(lines)]
    y: float = LINE * len(lines) + TITLE
    counts = [count for _, count in view.parts]
    ends = np.cumsum([0, *counts]) * (WIDTH / sum(counts))
    for panel in view.panels:
        height = max(MIN_HEIGHT, ROW * len(panel.values))
        drawn.append(move(_draw_panel(panel, height, ends[1:-1].tolist()), MARGIN, y))
        y += height + TITLE + 6
    middles = (ends[:-1] + ends[1:]) / 2
    names = (f'<text x="{x:g}">{escape(name)}</text>' for (name, _), x in zip(view.parts, middles, strict=True))
    drawn.append(f'<g class="parts" transform="translate({MARGIN} {y - 12:g})">{"".join(names)}</g>')
    drawn.append(f'<text class="right bad" x="{MARGIN + WIDTH}" y="{y + 8:g}">framed: {escape(view.framed)}</text>')
    return assemble(MARGIN + WIDTH + 12, y + 12, drawn, "tokens", view.title)


def _draw_panel(panel: Panel, height: int, dividers: Sequence[float]) -> str:
    """The map of colours, its title, the range of its values, and the frame."""
    num_rows, num_tokens = panel.values.shape
    low, high = min(0.0, float(panel.values.min())), float(np.abs(panel.values).max()) or 1.0
    colours = COLOUR_SCALES["light"]["diverging"] if low < 0 else (FLOOR, *COLOUR_SCALES["light"]["ramp"])
    low = -high if low < 0 else low
    levels = np.rint((panel.values - low) / (high - low) * (NUM_LEVELS - 1))
    cells = "".join(
        f'<path fill="{mix_colours(colours, level / (NUM_LEVELS - 1))}" d="'
        + "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(levels == level))
        + '"/>'
        for level in np.unique(levels).tolist()
    )
    step = height / num_rows
    named = enumerate(panel.rows if num_rows <= MAX_NAMES else ())
    frame = panel.asked or range(0)
    column = WIDTH / num_tokens
    return "".join(
        [
            f'<text class="left" y="-6">{escape(panel.name)}</text>',
            f'<text class="right range" x="{WIDTH}" y="-6">{use_minus_signs(f"{low:.3g} … {high:.3g}")}</text>',
            f'<g class="cells" transform="scale({column:g} {step:g})" shape-rendering="crispEdges">{cells}</g>',
            *(
                f'<text class="right" x="-5" y="{step * (row + 0.5) + 4:g}">{escape(name)}</text>'
                for row, name in named
            ),
            *(f'<path class="divider" d="M{x:g} 0v{height:g}"/>' for x in dividers),
            f'<rect class="frame" x="{column * frame.start:g}" width="{column * len(frame):g}" height="{height:g}"/>'
            if frame
            else "",
        ]
    )


def mix_colours(colours: Sequence[str], place: float) -> str:
    """The colour at a place between 0 and 1 on a scale of hexadecimal colours."""
    scale = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours])
    places = np.linspace(0, 1, len(colours))
    return "#" + "".join(f"{round(float(np.interp(place, places, channel))):02x}" for channel in scale.T)
