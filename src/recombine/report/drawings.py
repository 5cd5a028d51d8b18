"""Figures of whole experiments, for `recombine reproduce NAME --figures FOLDER`: what no single run can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from recombine.report.in_context import draw_in_context
from recombine.store import RunDirectory

DRAWINGS: dict[str, Callable[[Mapping[str, RunDirectory], Path], list[Path]]] = {"in-context": draw_in_context}
