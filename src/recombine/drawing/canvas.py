"""A Matplotlib figure in the house style, and how it becomes a file: for the figures of experiments."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recombine.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@contextmanager
def canvas(path: Path, width: float | int, height: float | int) -> Iterator[Figure]:
    """A figure of so many inches to draw on, written as a PNG file at the end."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=160)
    write_whole(path, content.getvalue())
