"""Figures of whole experiments, for `recombine reproduce NAME --figures FOLDER`: what no single run can show.

A drawing takes the finished runs, after the experiment's tables have read them, and returns the files that it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recombine.recipes.experiment import Runs
from recombine.recipes.in_context.figures import draw_in_context
from recombine.recipes.length_generalization.figures import (
    draw_capacity,
    draw_diversity,
    draw_lengths,
    draw_realisability,
)
from recombine.recipes.scale.figures import draw_scale

DRAWINGS: dict[str, Callable[[Runs, Path], list[Path]]] = {
    "in-context": draw_in_context,
    "scale-decodability": draw_scale,
    "length-generalization": draw_lengths,
    "length-capacity": draw_capacity,
    "length-diversity": draw_diversity,
    "length-realisability": draw_realisability,
}
