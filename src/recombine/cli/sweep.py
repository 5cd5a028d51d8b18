"""recombine sweep FILE.py: train the runs that a function in the file returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.main import Argument, Output, parse
from recombine.cli.sweep_status import show_status
from recombine.sweeps.plan import load_plan
from recombine.sweeps.results import CSV, PARQUET
from recombine.sweeps.run import EngineOptions, find_work, run_sweep

MAX_REPEATED = 3  # duplicates that are named


@dataclass(frozen=True, kw_only=True)
class SweepOptions(EngineOptions, Output):
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
    if plan.repeated:
        more = "; ..." if len(plan.repeated) > MAX_REPEATED else ""
        options.say(
            f"{len(plan.repeated)} of the listed runs have the hash of an earlier one and are run once: "
            f"{'; '.join(plan.repeated[:MAX_REPEATED])}{more}"
        )
    work = find_work(plan.records, out, retry=options.retry)
    if options.dry_run:
        table = work.as_table()
        options.show({"runs": table.as_dicts()}, table)
        return
    engine = options.open_engine(len(plan.records))
    failed = f", {len(work.failed)} failed earlier (--retry trains them again)" if work.failed else ""
    options.say(f"{len(plan.records)} runs: {len(work.finished)} finished, {len(work.todo)} to train{failed}")
    if work.todo:
        options.say(engine.describe())
    status = run_sweep(plan, engine, out=out, device=options.device, work=work, quiet=options.is_silent)
    show_status(status, options, f"results: {out / PARQUET}, {out / CSV}")
    if status.count("failed"):
        raise SystemExit(1)
