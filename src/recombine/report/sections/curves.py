"""Learning curves: training loss, and scores during training."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report import figures
from recombine.report.read import ReportRun, metrics_of, splits_of
from recombine.report.sections.section import Section

ORDER = 30


def build(runs: Sequence[ReportRun]) -> Section | None:
    drawn = {"loss": figures.loss_figure(runs)}
    for metric in metrics_of(runs):
        drawn |= {f"curves-{metric}-{split}": figures.curve_figure(runs, split, metric) for split in splits_of(runs)}
    content = {"metrics": metrics_of(runs), "splits": splits_of(runs)}
    trained = any(run.metrics for run in runs)
    return Section(name="curves", title="Learning curves", content=content, figures=drawn) if trained else None
