"""Scores with their intervals, between chance and ceiling."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report import figures
from recombine.report.runs import ReportRun, metrics_of, splits_of
from recombine.report.sections.section import Section

ORDER = 20


def build(runs: Sequence[ReportRun]) -> Section | None:
    metrics = metrics_of(runs)
    references = {
        (metric, split): {
            (score.chance, score.ceiling) for run in runs if run.result and (score := run.score(split, metric))
        }
        for metric in metrics
        for split in splits_of(runs)
    }
    shared = {key: next(iter(pairs)) for key, pairs in references.items() if len(pairs) == 1}
    drawn = {f"scores-{metric}": figures.score_figure(runs, metric) for metric in metrics}
    content = {"metrics": metrics, "splits": splits_of(runs), "shared": shared}
    return Section(name="scores", title="Scores", content=content, figures=drawn) if metrics else None
