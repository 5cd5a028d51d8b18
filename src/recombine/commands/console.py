"""What the verbs share: common flags, tables of scores, the progress bar."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from recombine.commands.layout import print_table
from recombine.evaluate import METRIC_TITLES
from recombine.store import Json
from recombine.tables import Table as ResultTable
from recombine.tables import format_number
from recombine.train import Progress as TrainingProgress
from recombine.train import Watcher

TEST_LEGEND = "test: trained combinations, new instances"
OOD_LEGENDS = {
    True: "ood: unseen combinations of trained modules",
    False: "ood: unseen combinations, with modules never trained",
    None: "ood: unseen combinations",
}
UNKNOWN_LEGEND = "unknown: modules never trained, or more at once than trained"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Flags of every verb."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""
    verbose: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-v"])] = False
    """Say more."""
    quiet: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-q"])] = False
    """Print the result only."""

    def show(self, value: Json, *tables: Table | ResultTable | str) -> None:
        """A result: as JSON, or as tables and text."""
        if self.json:
            print(json.dumps(value, indent=2, ensure_ascii=False))
            return
        console = Console()
        for table in tables:
            if isinstance(table, str):
                console.print(_wrap(table, console.width), highlight=False, soft_wrap=True)
            else:
                print_table(console, table)

    def say(self, message: str) -> None:
        """A remark for people, on standard error."""
        if not self.quiet:
            print(message, file=sys.stderr)


def _wrap(shown: str, width: int) -> str:
    """Text in lines of the console's width, but paths whole."""
    lines = (textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in shown.split("\n"))
    return "\n".join(lines)


def score_table(scores: Json, title: str | None = None, *, covered: bool | None = None) -> Table:
    """Scores of one run: a row for each split and metric."""
    table = Table(title=title, title_justify="left", caption=split_legend(scores, covered), caption_justify="left")
    for name, justify in (("split", "left"), ("metric", "left"), ("score", "right"), ("95 % interval", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("chance", justify="right")
    table.add_column("ceiling", justify="right")
    for split, metrics in scores.items():
        for metric, score in metrics.items():
            table.add_row(split, METRIC_TITLES.get(metric, metric), *format_score(score))
    return table


def split_legend(scores: Json, covered: bool | None = None) -> str:
    """What the splits in a table mean; `covered`, if known, is the certificate's word on every module being trained."""
    legend = f"{TEST_LEGEND} · {OOD_LEGENDS[covered]}"
    return f"{legend}\n{UNKNOWN_LEGEND}" if "unknown" in scores else legend


def format_score(score: Json) -> list[str]:
    """Value, interval, chance and ceiling as text."""
    return [
        format_number(score["value"]),
        f"{format_number(score['low'])} … {format_number(score['high'])}",
        format_number(score["chance"]),
        format_number(score["ceiling"]),
    ]


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
