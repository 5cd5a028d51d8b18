"""Results of experiments as small files: scores, curves and measured numbers of every run, without its parameters.

`results/<experiment>-<scale>.jsonl` has one line per run, so that the evidence behind a claim can be kept under version
control and read without the run directories. A stored run is used only while it is the run that the code would make now: its
hash, which covers names, versions and settings, must be that of a record of the experiment, and the version of the evaluation
must be the current one.

`results/README.md`: what was run, when, in which environment, how often it was interrupted, and what it cost.

Tables of stored results within pages of the documentation, between markers:

    <!-- results: scale-width small -->
    ...
    <!-- results: end -->

`recombine reproduce claims --page PAGE` writes what is between them, so that a page and `results/` cannot disagree.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, cast, get_args

from recombine.foundation import InputError, Table, check_choice, find_schema_error, read_file, replace_file
from recombine.sweeps import Finished, FinishedRun, Record
from recombine.tasks import Scale, Task
from recombine.training import EVALUATION_VERSION, Json, RunDirectory, hash_config
from recombine_papers.experiment import PaperExperiment

DIGITS = 7  # significant digits of stored numbers: float32 has no more
CURVE_POINTS = 40
RESULT_KEYS = (
    "task",
    "model",
    "label",
    "num_parameters",
    "split_sha256",
    "steps",
    "seconds",
    "steps_per_second",
    "versions",
    "evaluation_instances",
    "scores",
    "composition_sums",
    "baselines",
)
ENVIRONMENT_KEYS = ("recombine", "source_sha256", "python", "torch", "processor", "num_threads")


class StoredVersions(TypedDict):
    """Of the versions of a result, the one that is compared here; the others are part of the hash."""

    evaluation: int


class StoredResult(TypedDict):
    """Of the result in a stored line, what is relied on."""

    seconds: float
    steps: int
    versions: StoredVersions
    scores: dict[str, dict[str, Json]]


class StoredLine(TypedDict):
    """A line of a file of results."""

    hash: str
    seed: int
    result: StoredResult
    certificate: Json
    environment: Json
    measured: Json


@dataclass(frozen=True)
class StoredRun(FinishedRun):
    """A finished run of which only the stored numbers are left; `run` names its directory, which need not exist."""

    stored: Mapping[str, Any] | None = None

    @cached_property
    def result(self) -> Json:
        return dict((self.stored or {})["result"])

    @cached_property
    def certificate(self) -> Json:
        return dict((self.stored or {})["certificate"])

    @property
    def curve(self) -> list[Json]:
        return [row for row in (self.stored or {}).get("curve", []) if "scores" in row]

    @property
    def core_hours(self) -> float:
        threads = (self.stored or {})["environment"]["num_threads"]
        return float(self.result["seconds"]) * threads / 3600


def locate(record: Record, out: Path) -> Path:
    """The directory in which a record is trained; where that depends on prepared files, the latest finished one."""
    config = record.config
    found = [out / config.directory_name]
    if config.task.prepared_settings:
        asked = hash_config(without_prepared(config.as_dict(), config.task))
        results = sorted(out.glob(f"{config.name}-*/result.json"), key=lambda path: path.stat().st_mtime)
        runs = (RunDirectory(path.parent) for path in results)
        found += [run.path for run in runs if hash_config(without_prepared(run.config, config.task)) == asked]
    return found[-1]


def without_prepared(contents: Json, task: Task) -> Json:
    """A configuration without what `Task.prepare` fills in."""
    settings = {name: value for name, value in contents["task"].items() if name not in task.prepared_settings}
    return {"task": settings, "model": contents["model"], "training": contents["training"]}


def collect(experiment: PaperExperiment, scale: Scale, out: Path, device: str = "auto") -> list[Json]:
    """The stored form of every finished run of an experiment below a folder of runs."""
    records = list(experiment.records(scale))
    located = [(record, locate(record, out)) for record in records]
    runs = tuple(FinishedRun(record, RunDirectory(path)) for record, path in located if (path / "result.json").exists())
    return [summarise(run) for run in experiment.measure_runs(Finished(runs), device).runs]


def summarise(run: FinishedRun) -> Json:
    """What is stored of a run: enough for every table, interval and curve."""
    environment = run.run.read_json("environment.json")
    return {
        "settings": dict(run.record.settings),
        "seed": run.record.seed,
        "hash": hash_config(run.record.config.identity),
        "result": {key: shorten_numbers(run.result[key]) for key in RESULT_KEYS},
        "certificate": run.certificate,
        "prepared": {name: run.run.config["task"][name] for name in run.record.config.task.prepared_settings},
        "environment": {key: environment[key] for key in ENVIRONMENT_KEYS},
        "interrupted": len(environment.get("previous", [])),
        "finished": date_of(run.run.path / "result.json"),
        "measured": shorten_numbers(dict(run.measured)),
        "curve": shorten_numbers(summarise_curve(run.run.read_metrics())),
    }


def date_of(path: Path) -> str:
    """The day on which a file was written, in UTC."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()


def summarise_curve(rows: Sequence[Json]) -> list[Json]:
    """The points of the learning curve that have scores, and some of those that have a loss only."""
    every = max(1, len(rows) // CURVE_POINTS)
    names = ("step", "loss", "scores")
    return [
        {name: row[name] for name in names if name in row}
        for number, row in enumerate(rows, start=1)
        if "scores" in row or number % every == 0
    ]


def shorten_numbers(value: Any) -> Any:
    """The same data with numbers rounded to what they are worth; JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: shorten_numbers(item) for key, item in value.items()}
    return [shorten_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def results_path(folder: Path, experiment: PaperExperiment, scale: Scale) -> Path:
    return folder / f"{experiment.name}-{scale}.jsonl"


def write_results(folder: Path, experiment: PaperExperiment, scale: Scale, runs: Sequence[Json]) -> bool:
    """Add runs to the file of an experiment; those that it has already are replaced. Says whether anything changed."""
    path = results_path(folder, experiment, scale)
    known = {run["hash"]: run for run in read_lines(path)}
    merged = known | {run["hash"]: run for run in runs}
    if not runs or merged == known:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    order = {hash_config(record.config.identity): position for position, record in enumerate(experiment.records(scale))}
    lines = sorted(merged.values(), key=lambda run: order.get(run["hash"], len(order)))
    replace_file(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    return True


def copy_shared_runs(experiments: Collection[PaperExperiment], folder: Path) -> list[Path]:
    """Give every experiment the stored runs that it shares with another; returns the files that changed.

    Not for experiments that need numbers measured inside the networks, which the others' runs do not have.
    """
    files = [(each, scale) for each in experiments for scale in each.judged_scales]
    known = {(each.name, scale): current_lines(results_path(folder, each, scale)) for each, scale in files}
    stored = {name: line for lines in known.values() for name, line in lines.items()}
    changed = []
    for each, scale in files:
        if type(each).measures is not PaperExperiment.measures:
            continue
        records = {hash_config(record.config.identity): record for record in each.records(scale)}
        shared = [
            {**stored[name], "settings": dict(record.settings), "measured": {}}
            for name, record in records.items()
            if name in stored and name not in known[each.name, scale]
        ]
        if write_results(folder, each, scale, shared):
            changed.append(results_path(folder, each, scale))
    return changed


def current_lines(path: Path) -> dict[str, Json]:
    """The stored runs of a file whose evaluation is of the current version, by their hash."""
    lines = read_lines(path)
    return {line["hash"]: line for line in lines if line["result"]["versions"]["evaluation"] == EVALUATION_VERSION}


def read_lines(path: Path) -> list[Json]:
    """The stored runs of a file, or none if there is no file."""
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in read_file(path).decode().splitlines()]
        for number, line in enumerate(lines, start=1):
            if (fault := find_schema_error(line, StoredLine)) is not None:
                raise ValueError(f"line {number}: {fault}")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected results that `reproduce claims` wrote") from None
    return lines


def read_results(folder: Path, experiment: PaperExperiment, scale: Scale) -> Finished:
    """The stored runs of an experiment that are still current, in the order of its records."""
    return Finished(tuple(_match(experiment, scale, current_lines(results_path(folder, experiment, scale)))))


def _match(experiment: PaperExperiment, scale: Scale, stored: Mapping[str, Json]) -> Iterator[StoredRun]:
    for record in experiment.records(scale):
        line = stored.get(hash_config(record.config.identity))
        if line is not None:
            run = RunDirectory(locate(record, Path("runs")))
            yield StoredRun(record, run, line["measured"], line)


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


def format_index(experiments: Collection[PaperExperiment], folder: Path) -> str:
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


def read_files(experiment: PaperExperiment, folder: Path) -> dict[str, list[Json]]:
    """The stored runs of an experiment by the name of their file."""
    paths = [results_path(folder, experiment, scale) for scale in experiment.judged_scales]
    return {path.name: lines for path in paths if (lines := read_lines(path))}


def describe_files(experiment: PaperExperiment, folder: Path) -> list[str]:
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


END = "<!-- results: end -->"
BLOCK = re.compile(r"<!-- results: ([\w-]+) (\w+) -->\n.*?" + re.escape(END), re.DOTALL)


def has_blocks(text: str) -> bool:
    return BLOCK.search(text) is not None


def fill_blocks(text: str, folder: Path, experiments: Mapping[str, PaperExperiment]) -> str:
    """A text with the current results between its markers."""

    def fill(match: re.Match[str]) -> str:
        name, scale = match.groups()
        experiment = experiments[check_choice("experiment", name, experiments)]
        chosen = cast(Scale, check_choice("scale", scale, get_args(Scale)))
        finished = experiment.read(folder, chosen)
        command = f"`{experiment.command(chosen)}`"
        answer = experiment.answer(finished) if finished else ""
        body = format_markdown(experiment.summarise(finished)) if finished else f"*{command} has not been run.*"
        body = f"{answer}\n\n{body}" if answer else body
        return f"<!-- results: {name} {scale} -->\n{body}\n{END}"

    return BLOCK.sub(fill, text)


def format_markdown(table: Table) -> str:
    """A table in Markdown: its title, the rows, and its note as a line below."""
    names, rows = table.names, table.as_text()
    kept = [column for column in range(len(names)) if any(row[column] for row in rows)]
    lines = [f"**{table.title}**", "", _join([names[column] for column in kept])]
    lines.append("| " + " | ".join("---:" if _is_number(rows, column) else "---" for column in kept) + " |")
    lines += [_join([row[column] for column in kept]) for row in rows]
    return "\n".join([*lines, *(["", "; ".join(table.note.splitlines()) + "."] if table.note else [])])


def _join(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _is_number(rows: list[list[str]], column: int) -> bool:
    return all(row[column][:1] in "−0123456789" for row in rows)
