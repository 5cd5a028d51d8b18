"""What the commands share: common flags and tables of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.table import Table

from recombine.commands.output import Output as Output
from recombine.evaluate import MetricDict
from recombine.run import progress_bar as progress_bar
from recombine.store import Json
from recombine.tables import format_number
from recombine.tasks.base import REFERENCES, Task

TEST_LEGEND = "test: trained compositions, new instances"
OOD_LEGENDS = {
    True: "ood: held-out compositions of trained modules",
    False: "ood: held-out compositions, with modules never trained",
    None: "ood: held-out compositions",
}
UNKNOWN_LEGEND = "unknown: modules never trained, or more at once than trained"
REFERENCE_LEGEND = (
    "ceiling: the best possible score on the split; agnostic: the best without knowing which compositions it holds"
)


@dataclass(frozen=True, kw_only=True)
class RunOutput(Output):
    """Flags of every verb that loads runs."""

    code: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FILE.py:NAME")] = ()
    """Task or model of the run, if it is not part of this package; same form as for `train`. Runs this code. Repeatable."""


def score_table(
    scores: Json,
    title: str | None = None,
    *,
    covered: bool | None = None,
    metrics: Mapping[str, MetricDict] | None = None,
) -> Table:
    """Scores of one run, one row per split and metric. `metrics` comes from `result.json`."""
    caption = f"{split_legend(scores, covered)}\n{REFERENCE_LEGEND}"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for name in ("split", "metric"):
        table.add_column(name)
    for name in ("score", "95 % interval", "chance", "ceiling", "agnostic"):
        table.add_column(name, justify="right")
    for split, values in scores.items():
        for metric, score in values.items():
            table.add_row(split, title_of(metric, metrics), *format_score(score))
    return table


def title_of(metric: str, metrics: Mapping[str, MetricDict] | None) -> str:
    """Title of a metric; the default for its name if the result does not contain one."""
    if metrics is None or metric not in metrics:
        return Task.metric(metric).title
    return metrics[metric]["title"]


def split_legend(scores: Json, covered: bool | None = None) -> str:
    """Meaning of the splits in a table; `covered` says whether every module was trained, None if unknown."""
    legend = f"{TEST_LEGEND} · {OOD_LEGENDS[covered]}"
    return f"{legend}\n{UNKNOWN_LEGEND}" if "unknown" in scores else legend


def format_score(score: Json) -> list[str]:
    """Value, interval, chance, ceiling and agnostic optimum as text."""
    return [
        format_number(score["value"]),
        f"{format_number(score['low'])} … {format_number(score['high'])}",
        *(format_number(score.get(name)) for name in REFERENCES),
    ]
