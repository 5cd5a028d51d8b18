"""What the commands share: common flags and tables of scores."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from recombine.cli import ParsedFlags
from recombine.evaluate import METRIC_TITLES
from recombine.run import progress_bar as progress_bar
from recombine.store import Json

TEST_LEGEND = "test: trained combinations, new instances"
OOD_LEGENDS = {
    True: "ood: unseen combinations of trained modules",
    False: "ood: unseen combinations, with modules never trained",
    None: "ood: unseen combinations",
}
UNKNOWN_LEGEND = "unknown: modules never trained, or more at once than trained"


@dataclass(frozen=True, kw_only=True)
class Output(ParsedFlags):
    """Flags of every verb."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""
    verbose: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-v"])] = False
    """Log what happens to standard error."""
    quiet: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-q"])] = False
    """Print only the result."""

    def is_verbose(self) -> bool:
        return self.verbose

    def show(self, value: Json, *tables: Table | str) -> None:
        """Print a result, as JSON or as tables and text."""
        if self.json:
            print(json.dumps(value, indent=2, ensure_ascii=False))
            return
        console = Console()
        for table in tables:
            console.print(_wrap(table, console.width), highlight=False, soft_wrap=isinstance(table, str))

    def say(self, message: str) -> None:
        """Print a remark to standard error, unless the user wants quiet."""
        if not self.quiet:
            print(message, file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class RunOutput(Output):
    """Flags of every verb that loads runs."""

    code: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FILE.py:NAME")] = ()
    """Task or model of the run if it is not part of this package, as for `train`; this code is run. May be repeated."""


def _wrap(shown: Table | str, width: int) -> Table | str:
    """Text in lines of the console's width, but paths whole."""
    if not isinstance(shown, str):
        return shown
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


def format_number(value: Any) -> str:
    """Three decimals, or two digits of a value that three decimals would hide."""
    if value is None:
        return ""
    return (f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}").replace("-", "−")
