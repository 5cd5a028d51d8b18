"""recombine runs DIR: list the runs in a folder with their state and their scores."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.flags import split_legend, title_of
from recombine.cli.main import Argument, Output, parse
from recombine.foundation.display import Column, Table
from recombine.foundation.errors import InputError
from recombine.training.directory import RunDirectory, find_runs
from recombine.training.schema import Json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunsOptions(Output):
    """List the runs in a folder, with their scores."""

    examples = ("recombine runs", "recombine runs runs/fuzzy --json")

    folder: Annotated[Path, Argument(metavar="DIR", positional=True)] = Path("runs")
    """Folder with run directories."""


def run(argv: list[str]) -> None:
    options = parse(RunsOptions, argv, prog="runs")
    rows = []
    for directory in find_runs(options.folder):
        try:
            rows.append(describe_run(directory, options.folder))
        except InputError as error:
            _log.warning("left out: %s", error)
    if not rows:
        options.show({"runs": []}, f"{options.folder} holds no runs. `recombine train TASK` makes one.")
        return
    options.show({"runs": rows}, tabulate_runs(rows))


def describe_run(run: RunDirectory, folder: Path) -> Json:
    """One row of the table: what was trained, how far it is, and its headline scores."""
    config = run.config
    result = run.read_json("result.json") if run.finished else {}
    done = run.read_json("checkpoint.json").get("step", 0) if (run.path / "checkpoint.json").exists() else 0
    scores = result.get("scores", {})
    metric = next(iter(scores.get("test", {})), None)
    return {
        "run": str(run.path.relative_to(folder)) if run.path != folder else run.path.name,
        "task": config["task"].get("name"),
        "model": result.get("label") or config["model"].get("attention") or config["model"].get("kind"),
        "seed": config["task"].get("seed"),
        "steps": config["training"].get("steps"),
        "state": "finished" if run.finished else f"stopped at step {done}" if done else "not started",
        "metric": None if metric is None else title_of(metric, result.get("metrics")),
        **{split: scores.get(split, {}).get(metric, {}).get("value") for split in ("test", "ood")},
        "num_parameters": result.get("num_parameters"),
        "seconds": result.get("seconds"),
    }


def tabulate_runs(rows: list[Json]) -> Table:
    names = ("run", "task", "model", "seed", "steps", "state", "metric", "test", "ood", "num_parameters", "seconds")
    own = {
        **{name: Column(name=name, optional=True) for name in ("task", "model", "seed", "steps")},
        "num_parameters": Column(name="parameters", optional=True),
        "seconds": Column(name="seconds", format="fixed", digits=0, optional=True),
    }
    return Table(
        title=f"{len(rows)} run{'s' if len(rows) != 1 else ''}",
        columns=tuple(own.get(name, name) for name in names),
        rows=tuple(tuple(row[name] for name in names) for row in rows),
        note=f"{split_legend(('test', 'ood'))}\nThe command that started an unfinished run also resumes it.",
    )
