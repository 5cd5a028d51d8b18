"""The colours of all drawings: puzzles, maps, charts, and the page in light and dark.

Matplotlib figures in a common style, written atomically and with the same bytes each time.

Shapes that are easy to distinguish, their sizes, and the arrangement of several objects, for puzzles and maps.

Small pictures as inline SVG, in the colours of the page; shapes are defined once and used by name.

One instance with a model's answer, as shown in the report: a picture, its composition, and remarks.

A sequence as a picture: a column per token, a row per feature, the value of each as a colour.

Panels with different features, such as inputs and outputs, are stacked. Parts of the sequence, such as examples and queries,
are divided by a line and named below. What the network is asked for is framed.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from recombine.foundation.errors import check_choice
from recombine.foundation.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# puzzles and maps
INK, FAINT, ACCENT = "#1c2430", "#9aa3ae", "#c2410c"
FLOOR, WALL, SHADE = "#f6f4ef", "#39424e", "#fde8d7"
GOOD, BAD, PLAIN = "#0f766e", "#be4b3b", "#8d97a3"
EARLY, LATE = np.array([0.98, 0.73, 0.45]), np.array([0.60, 0.20, 0.03])  # first and last step of a walk

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
        write_whole(path, render_figure(figure, ".png", dpi=160))


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "recombine"}):
        content = render_figure(figure, path.suffix)
    write_whole(path, content)


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


def _list_shapes() -> tuple[Points, ...]:
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


SHAPES = _list_shapes()


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


def text_card(text: str, composition: tuple[str, ...], remarks: tuple[str, ...] = ()) -> Card:
    """A card for a task without a picture: the instance as text."""
    picture = Markup('<pre class="instance-text">{}</pre>').format(use_minus_signs(text))
    return Card(picture=picture, composition=composition, remarks=remarks)


WIDTH = 6.4  # in inches
ROW, LEAST = 0.16, 0.5  # height of a row, and least height of a panel, in inches
LINE = 88  # characters of a title
MAX_NAMES = 8  # more rows than that are not named one by one


class Panel(NamedTuple):
    """Some features of every token. `asked` is the part of the sequence that the network answers, if these are answers."""

    name: str
    values: Float[np.ndarray, "feature token"]
    rows: tuple[str, ...] = ()
    asked: range | None = None


def draw_tokens(
    path: Path | str, *, title: str, panels: Sequence[Panel], parts: Sequence[tuple[str, int]], framed: str
) -> None:
    """Write a sequence as PNG or SVG. `parts` are names and numbers of tokens, `framed` says what the frame is."""
    from matplotlib import rc_context

    path = Path(path)
    check_choice("picture format", path.suffix, METADATA)
    lines = textwrap.wrap(title, LINE)
    heights = [max(LEAST, ROW * len(panel.values)) for panel in panels]
    with rc_context(STYLE):
        figure = make_figure(WIDTH, sum(heights) + 0.35 * len(panels) + 0.2 * len(lines) + 0.6)
        figure.suptitle(escape_text("\n".join(lines)), x=0.01, ha="left", fontsize=9.5, color=INK)
        rows = figure.subplots(len(panels), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})
        for axes, panel in zip(rows[:, 0], panels, strict=True):
            _draw_panel(axes, panel, np.cumsum([count for _, count in parts])[:-1].tolist())
        _name_parts(rows[-1, 0], parts)
        figure.supxlabel(escape_text(f"framed: {framed}"), x=0.99, ha="right", fontsize=8, color=ACCENT)
        save_figure(figure, path)


def _draw_panel(axes: Axes, panel: Panel, dividers: Sequence[int]) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    signed = bool((panel.values < 0).any())
    largest = float(np.abs(panel.values).max()) or 1.0
    colours = COLOUR_SCALES["light"]["diverging"] if signed else (FLOOR, *COLOUR_SCALES["light"]["ramp"])
    image = axes.imshow(
        panel.values,
        aspect="auto",
        interpolation="nearest",
        cmap=LinearSegmentedColormap.from_list(panel.name, colours),
        vmin=-largest if signed else 0.0,
        vmax=largest,
    )
    axes.figure.colorbar(image, ax=axes, fraction=0.03, pad=0.015, aspect=8).outline.set_visible(False)
    axes.set_title(escape_text(panel.name), loc="left", fontsize=8.5, color=INK, pad=3)
    named = panel.rows if len(panel.rows) <= MAX_NAMES else ()
    axes.set_yticks(range(len(named)), [escape_text(name) for name in named])
    axes.tick_params(length=0, labelsize=7.5)
    axes.spines[:].set_visible(False)
    for column in dividers:
        axes.axvline(column - 0.5, color=INK, linewidth=1.2)
    if panel.asked is not None:
        corner, size = (panel.asked.start - 0.5, -0.5), (len(panel.asked), len(panel.values))
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=ACCENT, linewidth=2, clip_on=False, zorder=3))


def _name_parts(axes: Axes, parts: Sequence[tuple[str, int]]) -> None:
    """The name of each part under its middle."""
    ends = np.cumsum([0, *(count for _, count in parts)])
    middles = (ends[:-1] + ends[1:] - 1) / 2
    axes.set_xticks(middles, [escape_text(name) for name, _ in parts], color=QUIET)
