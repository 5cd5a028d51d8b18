"""recombine sweep status DIR: how far a sweep is, from any terminal or machine that sees its folder. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from recombine.cli.main import Argument, Output, parse
from recombine.foundation.display import Column, Table
from recombine.sweeps.results import choose_best
from recombine.sweeps.status import STATES, SweepReader, SweepStatus, draw


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Output):
    """Show which runs of a sweep are running, finished, failed or waiting, and the best so far."""

    examples = ("recombine sweep status runs/widths", "recombine sweep status runs/widths --json")

    folder: Annotated[Path, Argument(metavar="DIR", positional=True)]
    """Folder of the sweep."""


def run(argv: list[str]) -> None:
    options = parse(StatusOptions, argv, prog="sweep status")
    show_status(SweepReader(options.folder).read(), options)


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
    failed = Table(
        title="Failed",
        columns=(Column(name="run", wrap=True), Column(name="error", wrap=True), "directory"),
        rows=tuple((run.text, run.error, run.run) for run in status.select("failed")),
        note="the whole error is in failure.json of the directory; --retry trains failed runs again",
    )
    tables = [table for table in (best, failed) if table.rows]
    options.show(value, *tables, draw(status), *closing)
