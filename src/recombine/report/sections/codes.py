"""The map of latent codes."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report.explorer import explorer_figure, read_map
from recombine.report.findings import gather
from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 50


def build(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_map)
    content = {"found": found, "problems": problems}
    drawn = {"codes": explorer_figure(found)} if found else {}
    return Section(name="codes", title="Latent codes", content=content, figures=drawn) if found or problems else None
