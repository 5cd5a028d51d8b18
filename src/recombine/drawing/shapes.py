"""Shapes that are easy to distinguish, their sizes, and the arrangement of several objects, for puzzles and maps."""

from __future__ import annotations

import itertools
import math

import numpy as np
from jaxtyping import Float

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
