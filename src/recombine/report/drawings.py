"""Figures of whole experiments, for `recombine reproduce NAME --figures FOLDER`: what no single run can show.

A drawing takes the finished runs, after the experiment's tables have read them, and returns the files that it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recombine.recipes.experiment import Runs
from recombine.report.in_context import draw_in_context
from recombine.report.lengths import draw_capacity, draw_diversity, draw_lengths, draw_realisability
from recombine.report.scale import draw_scale

DRAWINGS: dict[str, Callable[[Runs, Path], list[Path]]] = {
    "in-context": draw_in_context,
    "scale-decodability": draw_scale,
    "length-generalization": draw_lengths,
    "length-capacity": draw_capacity,
    "length-diversity": draw_diversity,
    "length-realisability": draw_realisability,
}
