"""The flags of every verb, and how a result is printed. It needs no torch."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from recombine.cli.layout import print_table
from recombine.cli.main import ParsedFlags
from recombine.foundation.errors import spell_out
from recombine.foundation.tables import Table as ResultTable

RunPath = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
Device = Annotated[str, tyro.conf.arg(metavar="DEVICE")]


@dataclass(frozen=True, kw_only=True)
class Output(ParsedFlags):
    """Flags of every verb."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""
    verbose: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-v"])] = False
    """Write log messages to standard error."""
    quiet: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(aliases=["-q"])] = False
    """Print only the result."""

    def is_verbose(self) -> bool:
        return self.verbose

    def shows_progress(self) -> bool:
        return not (self.quiet or self.json)

    def show(self, value: dict[str, Any], *tables: Table | ResultTable | str) -> None:
        """Print a result, as JSON or as tables and text."""
        if self.json:
            print(json.dumps(value, indent=2, ensure_ascii=False))
            return
        console = Console()
        for table in tables:
            if isinstance(table, str):
                console.print(_wrap(table, console.width), highlight=False, markup=False, soft_wrap=True)
            else:
                print_table(console, table)

    def say(self, message: str) -> None:
        """Print a message to standard error, unless --quiet was given."""
        if not self.quiet:
            print(message, file=sys.stderr)


def _wrap(shown: str, width: int) -> str:
    """Wrap text to the width of the console without breaking paths."""
    lines = (
        textwrap.fill(spell_out(line.expandtabs()), width, break_long_words=False, break_on_hyphens=False)
        for line in shown.split("\n")
    )
    return "\n".join(lines)
