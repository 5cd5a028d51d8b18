"""A sequence as a picture: a column per token, a row per feature, the value of each as a colour.

Panels with different features, such as inputs and outputs, are stacked. Parts of the sequence, such as examples and queries,
are divided by a line and named below. What the network is asked for is framed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from recombine.drawing.canvas import METADATA, STYLE, escape_text, make_figure, save_figure
from recombine.drawing.palette import ACCENT, FLOOR, INK, QUIET, SCALES
from recombine.errors import check_choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    colours = SCALES["light"]["diverging"] if signed else (FLOOR, *SCALES["light"]["ramp"])
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
