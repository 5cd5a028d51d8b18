"""Figures of whole experiments, for `recombine reproduce NAME --figures FOLDER`: what no single run can show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recombine.recipes.experiment import Runs
from recombine.report.in_context import draw_in_context

DRAWINGS: dict[str, Callable[[Runs, Path], list[Path]]] = {"in-context": draw_in_context}
