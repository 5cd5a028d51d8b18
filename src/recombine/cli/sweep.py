"""recombine sweep FILE.py: train the runs that a function in the file returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.main import Argument, Output, parse
from recombine.cli.sweep_status import SweepDisplay, show_status
from recombine.foundation.display import Table
from recombine.sweeps.plan import Plan, describe_plan, load_plan
from recombine.sweeps.run import EngineFlags, Work, find_work, run_sweep
from recombine.sweeps.status import CSV, PARQUET, SweepReader

MAX_REPEATED = 3  # duplicates that are named


@dataclass(frozen=True, kw_only=True)
class SweepOptions(EngineFlags, Output):
    """Train the runs that a function returns. Finished runs are skipped, killed ones are resumed.

    `recombine sweep status DIR` shows how far a sweep is.
    """

    examples = (
        "recombine sweep sweep.py --jobs 2",
        "recombine sweep sweep.py --engine ray",
        "recombine sweep status runs/sweep",
    )

    file: Annotated[str, Argument(metavar="FILE.py[:FUNCTION]", positional=True)]
    """Python file with a function that returns run configurations (default function: runs). Runs this code."""
    out: Path | None = None
    """Folder of the sweep: run directories, results.parquet, results.csv (default: runs/NAME of the file)."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, ..."""
    retry: bool = False
    """Train failed runs again."""
    dry_run: bool = False
    """List the runs; train nothing."""


def run(argv: list[str]) -> None:
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
    with SweepDisplay(reader, total=len(plan.records), done=done, quiet=options.is_silent) as display:
        status = run_sweep(plan, engine, out=out, device=options.device, work=work, done=display.report)
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
