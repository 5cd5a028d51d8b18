"""Matplotlib figures in a common style, written atomically and with the same bytes each time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recombine.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
