"""The split and its certificate."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 90


def build(runs: Sequence[ReportRun]) -> Section | None:
    groups: dict[str, list[ReportRun]] = {}
    for run in runs:
        if run.certificate:
            groups.setdefault(str(run.certificate.get("sha256")), []).append(run)
    return Section(name="certificate", title="The split", content={"groups": groups}) if groups else None
