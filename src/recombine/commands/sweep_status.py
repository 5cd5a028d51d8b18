"""recombine sweep status DIR: how far a sweep is, from any terminal or machine that sees its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from recombine.cli import parse
from recombine.commands.live import format_speed, summarise
from recombine.commands.output import Output
from recombine.sweep.results import choose_best
from recombine.sweep.status import STATES, SweepReader, SweepStatus
from recombine.tables import Column, Table

EXAMPLES = (
    "recombine sweep status runs/widths",
    "recombine sweep status runs/widths --json",
)


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Output):
    """Show which runs of a sweep are running, finished, failed or waiting, and the best so far."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Folder of the sweep."""


def run(argv: list[str]) -> None:
    options = parse(StatusOptions, argv, prog="sweep status")
    status = SweepReader(options.folder).read()
    show_status(status, options)


def show_status(status: SweepStatus, options: Output, *closing: str) -> None:
    """Print the running and failed runs, the best of the grid and one line about all; or all of it as JSON."""
    best = choose_best(status)
    value: dict[str, Any] = {
        "source": status.source,
        **{state: status.count(state) for state in STATES},
        "seconds_left": status.seconds_left,
        "steps_per_second": status.steps_per_second,
        "best": best.as_dicts(),
        "runs": [
            {
                "run": run.run,
                "settings": dict(run.settings),
                "seed": run.seed,
                "state": run.state,
                "step": run.step,
                "steps": run.steps,
                "error": run.error or None,
                "test": run.score("test"),
                "ood": run.score("ood"),
            }
            for run in status.runs
        ],
    }
    tables = [*list_running(status), *([best] if best.rows else []), *list_failed(status)]
    options.show(value, *tables, summarise(status), *closing)


def list_running(status: SweepStatus) -> list[Table]:
    running = status.select("running")
    rows = tuple((run.text, f"{run.step:,}/{run.steps:,}", format_speed(run)) for run in running)
    return [Table(title="Running", columns=("run", "step", "steps/s"), rows=rows)] if rows else []


def list_failed(status: SweepStatus) -> list[Table]:
    rows = tuple((run.text, run.error, run.run) for run in status.select("failed"))
    columns = (Column(name="run", wrap=True), Column(name="error", wrap=True), "directory")
    note = f"the whole error is in failure.json of the directory; --retry trains {'it' if len(rows) == 1 else 'them'} again"
    return [Table(title="Failed", columns=columns, rows=rows, note=note)] if rows else []
