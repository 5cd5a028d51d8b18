"""The colours of all drawings: puzzles, maps, charts, and the page in light and dark."""

from __future__ import annotations

import numpy as np

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
SCALES = {  # classes of points; low to high; own and swapped-in; opposite to alike
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
