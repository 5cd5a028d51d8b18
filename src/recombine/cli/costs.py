"""What runs would cost on this machine: the table of `--dry-run`."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.cli.live import format_duration
from recombine.cli.output import Output
from recombine.foundation.tables import Table
from recombine.sweeps.choose import EngineFlags, split_cores
from recombine.sweeps.costs import estimate_runs
from recombine.sweeps.engine import count_threads
from recombine.sweeps.records import Record
from recombine.sweeps.run import Work


def show_costs(records: Sequence[Record], work: Work, options: Output, *, split: EngineFlags, device: str) -> None:
    """Print every run with its state and its estimated time, and the sum."""
    jobs, threads = split_cores(len(records), jobs=split.jobs, threads=split.threads)
    estimate = estimate_runs(
        [record.config for record in records],
        threads=threads,
        device=device,
        watch=lambda number, total: None if options.json else options.say(f"measured size {number}/{total}"),
    )
    assert estimate is not None
    states = {id(record): "finished" for record in work.finished} | {id(record): "failed" for record in work.failed}
    rows, left = [], []
    for record, seconds in zip(records, estimate.seconds, strict=True):
        state = states.get(id(record), "to train")
        rows.append((record.text, record.config.training.steps, state, format_duration(seconds)))
        left.append(seconds if state == "to train" else 0.0)
    wall = max(max(left, default=0.0), sum(left) / jobs)
    table = Table(title="Runs", columns=("run", "steps", "state", "estimate"), rows=tuple(rows))
    closing = (
        f"{sum(seconds > 0 for seconds in left)} runs to train: {format_duration(sum(left))} of training, "
        f"{format_duration(wall)} with {jobs} at a time and {count_threads(threads)} each, on this machine"
    )
    value = {"runs": table.as_dicts(), "seconds": sum(left), "wall_seconds": wall, "jobs": jobs, "threads": threads}
    options.show(value, table, closing)
