"""`results/README.md`: what was run, when, in which environment, how often it was interrupted, and what it cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recombine.recipes.experiment import Experiment
from recombine.recipes.stored import read_lines, results_path
from recombine.store import Json

INDEX_TITLE = "# Results\n"
INTRODUCTION = f"""{INDEX_TITLE}
The numbers behind [the card of claims](../docs/claims.md): scores, learning curves and measured numbers of every finished
run, without its parameters. One line per run. `recombine reproduce claims --out RUNS` adds the finished runs of a folder and
writes this page. A line is used only while the code would make the same run: its hash covers names, versions and settings.

- A run that serves several experiments is in the file of each.
- *core-hours*: wall time multiplied by threads; other work on the machine makes them longer.
- *interrupted*: how often runs were stopped and resumed in another environment (code, machine or number of threads).
"""
HEADER = (
    "| file | runs | seeds | steps | core-hours | interrupted | finished | processor | code |",
    "| --- | ---: | --- | --- | ---: | ---: | --- | --- | --- |",
)


def format_index(experiments: Collection[Experiment], folder: Path) -> str:
    """The page as Markdown."""
    distinct = {
        line["hash"]: line for each in experiments for lines in read_files(each, folder).values() for line in lines
    }
    total = count_core_hours(list(distinct.values()))
    rows = [row for experiment in experiments for row in experiment.describe_stored(folder)]
    rows.sort(key=lambda row: "| none |" in row)  # calculations last
    return (
        "\n".join(
            [INTRODUCTION, f"In all: {len(distinct)} different runs, {total:.1f} core-hours.", "", *HEADER, *rows]
        )
        + "\n"
    )


def read_files(experiment: Experiment, folder: Path) -> dict[str, list[Json]]:
    """The stored runs of an experiment by the name of their file."""
    paths = [results_path(folder, experiment, scale) for scale in experiment.judged_scales]
    return {path.name: lines for path in paths if (lines := read_lines(path))}


def describe_files(experiment: Experiment, folder: Path) -> list[str]:
    """One row per file: the runs of an experiment at one scale."""
    return [
        format_row(
            name,
            runs=str(len(lines)),
            seeds=[line["seed"] for line in lines],
            steps=[line["result"]["steps"] for line in lines],
            core_hours=count_core_hours(lines),
            interrupted=str(sum(line.get("interrupted", 0) for line in lines)),
            finished=[line["finished"] for line in lines],
            environments=[line["environment"] for line in lines],
        )
        for name, lines in read_files(experiment, folder).items()
    ]


def format_row(
    name: str,
    *,
    runs: str,
    seeds: Iterable[int],
    steps: Iterable[int],
    core_hours: float,
    interrupted: str,
    finished: Sequence[str],
    environments: Sequence[Mapping[str, Any]],
) -> str:
    """One row of the page."""
    cells = (
        f"`{name}`",
        runs,
        list_values(seeds),
        list_values(steps),
        f"{core_hours:.2f}",
        interrupted,
        " to ".join(dict.fromkeys((min(finished), max(finished)))),
        list_values(environment["processor"] for environment in environments),
        list_values(environment["source_sha256"][:8] for environment in environments),
    )
    return f"| {' | '.join(cells)} |"


def count_core_hours(lines: Sequence[Json]) -> float:
    """Training time of runs, multiplied by their number of threads."""
    return sum(line["result"]["seconds"] * line["environment"]["num_threads"] for line in lines) / 3600


def list_values(values: Iterable[int | str]) -> str:
    """The distinct values, sorted."""
    return ", ".join(map(str, sorted(set(values))))
