"""Instances of held-out compositions that each run gets right and wrong."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report.explorer import read_gallery
from recombine.report.findings import gather
from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 80


def build(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_gallery)
    content = {"found": found, "problems": problems}
    return Section(name="gallery", title="Gallery", content=content) if found or problems else None
