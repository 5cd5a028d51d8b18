"""How the runs were made: settings, code and environment."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report.read import ReportRun
from recombine.report.sections.section import Section
from recombine.training.comparison import differing_settings

ORDER = 100


def build(runs: Sequence[ReportRun]) -> Section | None:
    differing = differing_settings([run.directory for run in runs])[0]
    return Section(name="origin", title="How it was made", content={"differing": list(differing)})
