"""Scores with their intervals, between chance and ceiling."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report import figures
from recombine.report.read import ReportRun, metrics_of, splits_of
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
    content = {"metrics": metrics, "splits": splits_of(runs), "shared": shared, "meanings": _list_meanings(runs)}
    return Section(name="scores", title="Scores", content=content, figures=drawn) if metrics else None


def _list_meanings(runs: Sequence[ReportRun]) -> dict[str, list[str]]:
    """What the tasks of the runs say that each split holds."""
    found = {split: [run.find_title("splits", split, "meaning") for run in runs] for split in splits_of(runs)}
    meanings = {split: list(dict.fromkeys(text for text in texts if text)) for split, texts in found.items()}
    return {split: texts for split, texts in meanings.items() if texts}
