"""What the commands share: common flags, tables of scores, the progress bar."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from recombine.evaluate import MetricDict
from recombine.store import Json
from recombine.tasks.base import REFERENCES, Task
from recombine.train import Progress as TrainingProgress
from recombine.train import Watcher

TEST_LEGEND = "test: trained combinations, new instances"
OOD_LEGENDS = {
    True: "ood: unseen combinations of trained modules",
    False: "ood: unseen combinations, with modules never trained",
    None: "ood: unseen combinations",
}
UNKNOWN_LEGEND = "unknown: modules never trained, or more at once than trained"
REFERENCE_LEGEND = (
    "ceiling: the best possible score on the split; agnostic: the best without knowing which combinations it holds"
)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Flags of every verb."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""
    verbose: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-v"])] = False
    """Say more."""
    quiet: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-q"])] = False
    """Print the result only."""

    def show(self, value: Json, *tables: Table | str) -> None:
        """A result: as JSON, or as tables and text."""
        if self.json:
            print(json.dumps(value, indent=2, ensure_ascii=False))
            return
        console = Console()
        for table in tables:
            console.print(_wrap(table, console.width), highlight=False, soft_wrap=isinstance(table, str))

    def say(self, message: str) -> None:
        """A remark for people, on standard error."""
        if not self.quiet:
            print(message, file=sys.stderr)


def _wrap(shown: Table | str, width: int) -> Table | str:
    """Text in lines of the console's width, but paths whole."""
    if not isinstance(shown, str):
        return shown
    lines = (textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in shown.split("\n"))
    return "\n".join(lines)


def score_table(
    scores: Json,
    title: str | None = None,
    *,
    covered: bool | None = None,
    metrics: Mapping[str, MetricDict] | None = None,
) -> Table:
    """Scores of one run: a row for each split and metric. `metrics` is that of `result.json`."""
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
    """How a metric is shown; by its name where a result does not say."""
    if metrics is None or metric not in metrics:
        return Task.metric(metric).title
    return metrics[metric]["title"]


def split_legend(scores: Json, covered: bool | None = None) -> str:
    """What the splits in a table mean; `covered` says whether every module was trained, None if that is not known."""
    legend = f"{TEST_LEGEND} · {OOD_LEGENDS[covered]}"
    return f"{legend}\n{UNKNOWN_LEGEND}" if "unknown" in scores else legend


def format_score(score: Json) -> list[str]:
    """Value, interval, chance, ceiling and agnostic optimum as text."""
    return [
        format_number(score["value"]),
        f"{format_number(score['low'])} … {format_number(score['high'])}",
        *(format_number(score.get(name)) for name in REFERENCES),
    ]


def format_number(value: Any) -> str:
    """Three decimals, or two digits of a value that three decimals would hide."""
    if value is None:
        return ""
    return (f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}").replace("-", "−")


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Watcher | None]:
    """A bar with loss, steps a second and the time left, on standard error."""
    if quiet:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    row = bar.add_task(label, total=None, note="")

    def watch(progress: TrainingProgress) -> None:
        bar.start()  # not before there is something to show: a complaint stands alone
        note = f"loss {progress.loss:.4g}  {progress.steps_per_second:.1f} steps/s"
        bar.update(row, total=progress.steps, completed=progress.step, note=note)

    try:
        yield watch
    finally:
        if bar.live.is_started:
            bar.stop()
