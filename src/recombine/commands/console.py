"""What the commands share: common flags and tables of scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import tyro

from recombine.commands.output import Output as Output
from recombine.evaluate import MetricDict, SplitDict
from recombine.run import progress_bar as progress_bar
from recombine.store import Json
from recombine.tables import Cell, Table, Value
from recombine.tasks.base import REFERENCES, SPLIT_TITLES, Task
from recombine.train import Progress, StepWatcher, Watcher

REFERENCE_LEGEND = (
    "chance: the score of the best answer that ignores the input\nceiling: the best possible score on the split\n"
    "agnostic: the best possible score without knowing which compositions the split has"
)


@dataclass(frozen=True, kw_only=True)
class RunOutput(Output):
    """Flags of every verb that loads runs."""

    code: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FILE.py:NAME")] = ()
    """Task or model of the run, if it is not part of this package; same form as for `train`. Runs this code. Repeatable."""


class Starting:
    """A watcher of a training that remembers whether there was anything to train."""

    def __init__(self, watch: Watcher | None) -> None:
        self.watch = watch
        self.started = False

    def __call__(self, progress: Progress) -> None:
        self.started = True
        if self.watch is not None:
            self.watch(progress)

    def pulse(self, step: int, steps: int) -> None:
        """Passed on to a watcher of single steps."""
        if isinstance(self.watch, StepWatcher):
            self.watch.pulse(step, steps)


def score_table(
    scores: Json,
    title: str = "scores",
    *,
    metrics: Mapping[str, MetricDict] | None = None,
    splits: Mapping[str, SplitDict] | None = None,
) -> Table:
    """Scores of one run, one row per split and metric. `metrics` and `splits` come from `result.json`."""
    rows = tuple(
        (split, title_of(metric, metrics), *_score_cells(score))
        for split, values in scores.items()
        for metric, score in values.items()
    )
    columns = ("split", "metric", "score (95 % interval)", *REFERENCES)
    return Table(title=title, columns=columns, rows=rows, note=f"{split_legend(scores, splits)}\n{REFERENCE_LEGEND}")


def _score_cells(score: Json) -> tuple[Value, ...]:
    return Cell(value=score["value"], low=score["low"], high=score["high"]), *(score.get(name) for name in REFERENCES)


def title_of(metric: str, metrics: Mapping[str, MetricDict] | None) -> str:
    """Title of a metric; the default for its name if the result does not contain one."""
    if metrics is None or metric not in metrics:
        return Task.metric(metric).title
    return metrics[metric]["title"]


def split_legend(scores: Iterable[str], splits: Mapping[str, SplitDict] | None = None) -> str:
    """Meaning of the splits in a table; `splits` comes from the task, see `describe_splits`."""
    titles: Mapping[str, str] = SPLIT_TITLES  # type: ignore[assignment]
    known = {} if splits is None else splits
    return "\n".join(
        f"{split}: {known[split]['meaning'] if split in known else titles.get(split, split)}" for split in scores
    )
