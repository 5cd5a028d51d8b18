"""recombine sweep FILE.py: train the runs that a function in the file returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recombine.cli import parse
from recombine.commands.costs import show_costs
from recombine.commands.live import SweepDisplay
from recombine.commands.output import Device, Output
from recombine.commands.sweep_status import show_status
from recombine.engines import EngineFlags
from recombine.sweep.execute import Work, find_work, run_sweep
from recombine.sweep.plan import Plan, describe_plan, load_plan
from recombine.sweep.results import CSV, PARQUET
from recombine.sweep.status import SweepReader

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
    """List the runs and their estimated cost on this machine, measured by a few steps of each size; train nothing."""


def run(argv: list[str]) -> None:
    options = parse(SweepOptions, argv, prog="sweep")
    plan = load_plan(options.file)
    out = options.out or Path("runs") / Path(options.file.rpartition(":")[0] or options.file).stem
    say_repeated(plan.repeated, options)
    work = find_work(plan.records, out, retry=options.retry)
    if options.dry_run:
        show_costs(plan.records, work, options, split=options, device=options.device)
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


def say_repeated(repeated: Sequence[str], options: Output) -> None:
    """Name the runs that were listed more than once."""
    if repeated:
        named = "; ".join(repeated[:MAX_REPEATED]) + ("; ..." if len(repeated) > MAX_REPEATED else "")
        options.say(f"{len(repeated)} of the listed runs have the hash of an earlier one and are run once: {named}")


def say_work(plan: Plan, work: Work, options: Output) -> None:
    """How much is left to do."""
    failed = f", {len(work.failed)} failed earlier (--retry trains them again)" if work.failed else ""
    options.say(f"{len(plan.records)} runs: {len(work.finished)} finished, {len(work.todo)} to train{failed}")
