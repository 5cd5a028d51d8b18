"""`results/README.md`: what was run, when, in which environment, how often it was interrupted, and what it cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from recombine.recipes.calculation import Calculation, numbers_path, read_numbers
from recombine.recipes.experiment import Experiment
from recombine.recipes.stored import read_lines, results_path
from recombine.store import Json

INDEX_TITLE = "# Results\n"
INTRODUCTION = f"""{INDEX_TITLE}
The numbers behind [the card of claims](../docs/claims.md): scores, learning curves and measured numbers of every finished
run, without its parameters. One line per run. `recombine reproduce claims --out RUNS` adds the finished runs of a folder and
writes this page. A line is used only while the code would make the same run: its hash covers names, versions and settings.

- A run that serves several experiments is in the file of each.
- *core-hours*: as clocked; other work on the machine makes them longer.
- *interrupted*: how often runs were stopped and resumed in another environment (code, machine or number of threads).
"""
HEADER = (
    "| file | runs | seeds | steps | core-hours | interrupted | finished | processor | code |",
    "| --- | ---: | --- | --- | ---: | ---: | --- | --- | --- |",
)


def format_index(experiments: Collection[Experiment], folder: Path) -> str:
    """The page as Markdown."""
    paths = [
        results_path(folder, experiment, scale) for experiment in experiments for scale in experiment.judged_scales
    ]
    stored = {path.name: lines for path in paths if (lines := read_lines(path))}
    distinct = {line["hash"]: line for lines in stored.values() for line in lines}
    total = count_core_hours(list(distinct.values()))
    rows = [describe_file(name, lines) for name, lines in stored.items()]
    rows += [row for each in experiments if isinstance(each, Calculation) for row in describe_numbers(each, folder)]
    return (
        "\n".join(
            [INTRODUCTION, f"In all: {len(distinct)} different runs, {total:.1f} core-hours.", "", *HEADER, *rows]
        )
        + "\n"
    )


def describe_numbers(experiment: Calculation, folder: Path) -> list[str]:
    """The row of an experiment without runs, if its numbers are stored."""
    stored = read_numbers(folder, experiment)
    if stored is None:
        return []
    cells = (
        f"`{numbers_path(folder, experiment).name}`",
        "none",
        list_values(range(experiment.num_seeds)),
        "",
        f"{stored['seconds'] / 3600:.2f}",
        "",
        stored["finished"],
        stored["environment"]["processor"],
        stored["environment"]["source_sha256"][:8],
    )
    return [f"| {' | '.join(cells)} |"]


def describe_file(name: str, lines: Sequence[Json]) -> str:
    """One row: the runs of an experiment at one scale."""
    environments = [line["environment"] for line in lines]
    cells = (
        f"`{name}`",
        str(len(lines)),
        list_values(line["seed"] for line in lines),
        list_values(line["result"]["steps"] for line in lines),
        f"{count_core_hours(lines):.2f}",
        str(sum(line.get("interrupted", 0) for line in lines)),
        " to ".join(dict.fromkeys((min(line["finished"] for line in lines), max(line["finished"] for line in lines)))),
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
