"""recombine sweep FILE.py: train the runs that a function in a file returns; recombine sweep status DIR.

recombine sweep status DIR: how far a sweep is, from any terminal or machine that sees its folder.

recombine sweep FILE.py: train the runs that a function in the file returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from recombine.cli.live import SweepDisplay, format_speed, summarise
from recombine.cli.main import parse
from recombine.cli.output import Device, Output
from recombine.foundation.tables import Column, Table
from recombine.sweeps.choose import EngineFlags
from recombine.sweeps.plan import Plan, describe_plan, load_plan
from recombine.sweeps.run import CSV, PARQUET, Work, choose_best, find_work, run_sweep
from recombine.sweeps.status import STATES, SweepReader, SweepStatus

EXAMPLES = (
    "recombine sweep sweep.py --jobs 2",
    "recombine sweep sweep.py --engine ray",
    "recombine sweep status runs/sweep",
)


def run(argv: list[str]) -> None:
    if argv[:1] == ["status"]:
        run_status(argv[1:])
    else:
        run_file(argv)


EXAMPLES_SWEEP_STATUS = (
    "recombine sweep status runs/widths",
    "recombine sweep status runs/widths --json",
)


@dataclass(frozen=True, kw_only=True)
class StatusOptions(Output):
    """Show which runs of a sweep are running, finished, failed or waiting, and the best so far."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Folder of the sweep."""


def run_status(argv: list[str]) -> None:
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


MAX_REPEATED = 3  # duplicates that are named


@dataclass(frozen=True, kw_only=True)
class SweepOptions(EngineFlags, Output):
    """Train the runs that a function returns. Finished runs are skipped, killed ones are resumed.

    `recombine sweep status DIR` shows how far a sweep is.
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.py[:FUNCTION]")]
    """Python file with a function that returns run configurations (default function: runs). Runs this code."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the sweep: run directories, results.parquet, results.csv (default: runs/NAME of the file)."""
    device: Device = "auto"
    """Device to train on: auto, cpu, cuda, ..."""
    retry: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train failed runs again."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """List the runs; train nothing."""


def run_file(argv: list[str]) -> None:
    options = parse(SweepOptions, argv, prog="sweep")
    plan = load_plan(options.file)
    out = options.out or Path("runs") / Path(options.file.rpartition(":")[0] or options.file).stem
    say_repeated(plan.repeated, options)
    work = find_work(plan.records, out, retry=options.retry)
    if options.dry_run:
        show_work(work, options)
        return
    engine = options.open_engine(len(plan.records))
    say_work(plan, work, options)
    if work.todo:
        options.say(engine.describe())
    done = len(work.finished) + len(work.failed)
    reader = SweepReader(out, describe_plan(plan))
    with SweepDisplay(reader, total=len(plan.records), done=done, quiet=options.quiet or options.json) as display:
        status = run_sweep(plan, engine, out=out, device=options.device, retry=options.retry, done=display.tell)
    show_status(status, options, f"results: {out / PARQUET}, {out / CSV}")
    if status.count("failed"):
        raise SystemExit(1)


def show_work(work: Work, options: Output) -> None:
    """Print every run with its state."""
    states = {"finished": work.finished, "failed": work.failed, "to train": work.todo}
    rows = [(run.text, run.config.training.steps, state) for state, records in states.items() for run in records]
    table = Table(title="Runs", columns=("run", "steps", "state"), rows=tuple(rows))
    options.show({"runs": table.as_dicts()}, table, f"{len(work.todo)} of {len(rows)} runs to train")


def say_repeated(repeated: Sequence[str], options: Output) -> None:
    """Name the runs that were listed more than once."""
    if repeated:
        named = "; ".join(repeated[:MAX_REPEATED]) + ("; ..." if len(repeated) > MAX_REPEATED else "")
        options.say(f"{len(repeated)} of the listed runs have the hash of an earlier one and are run once: {named}")


def say_work(plan: Plan, work: Work, options: Output) -> None:
    """How much is left to do."""
    failed = f", {len(work.failed)} failed earlier (--retry trains them again)" if work.failed else ""
    options.say(f"{len(plan.records)} runs: {len(work.finished)} finished, {len(work.todo)} to train{failed}")
