"""The verdict on each run, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report.findings import gather, read_diagnosis
from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 10


def build(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_diagnosis)
    content = {"found": found, "problems": problems}
    return Section(name="verdict", title="Verdict", content=content) if found or problems else None
