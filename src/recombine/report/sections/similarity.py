"""How similar the mean codes of the modules are."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report import figures as inside_figures
from recombine.report.findings import gather, read_similarity
from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

ORDER = 60


def build(runs: Sequence[ReportRun]) -> Section | None:
    found, problems = gather(runs, read_similarity)
    drawn = {
        f"similarity-{run.series}-{site}-{kind}": inside_figures.similarity_figure(
            similarity["modules"], similarity[kind]
        )
        for run, sites in found
        for site, similarity in sites.items()
        for kind in ("centred", "cosine")
    }
    sites = list(dict.fromkeys(site for _, similarities in found for site in similarities))
    content = {"found": found, "problems": problems, "sites": sites}
    return Section(name="similarity", title="Similarity", content=content, figures=drawn) if found or problems else None
