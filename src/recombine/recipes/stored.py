"""Results of experiments as small files: scores, curves and measured numbers of every run, without its parameters.

`results/<experiment>-<scale>.jsonl` has one line per run, so that the evidence behind a claim can be kept under version
control and read without the run directories. A stored run is used only while it is the run that the code would make now: its
hash, which covers names, versions and settings, must be that of a record of the experiment, and the version of the evaluation
must be the current one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from recombine.conform import find_fault
from recombine.errors import InputError
from recombine.evaluate import EVALUATION_VERSION
from recombine.files import read_file, replace_file
from recombine.recipes.experiment import Experiment, Finished, FinishedRun, Record
from recombine.store import Json, RunDirectory, hash_config
from recombine.tasks import Task
from recombine.tasks.base import Scale

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


def collect(experiment: Experiment, scale: Scale, out: Path, device: str = "auto") -> list[Json]:
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


def results_path(folder: Path, experiment: Experiment, scale: Scale) -> Path:
    return folder / f"{experiment.name}-{scale}.jsonl"


def write_results(folder: Path, experiment: Experiment, scale: Scale, runs: Sequence[Json]) -> bool:
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


def copy_shared_runs(experiments: Collection[Experiment], folder: Path) -> list[Path]:
    """Give every experiment the stored runs that it shares with another; returns the files that changed.

    Not for experiments that need numbers measured inside the networks, which the others' runs do not have.
    """
    files = [(each, scale) for each in experiments for scale in each.judged_scales]
    known = {(each.name, scale): current_lines(results_path(folder, each, scale)) for each, scale in files}
    stored = {name: line for lines in known.values() for name, line in lines.items()}
    changed = []
    for each, scale in files:
        if type(each).measures is not Experiment.measures:
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
            if (fault := find_fault(line, StoredLine)) is not None:
                raise ValueError(f"line {number}: {fault}")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected results that `reproduce claims` wrote") from None
    return lines


def read_results(folder: Path, experiment: Experiment, scale: Scale) -> Finished:
    """The stored runs of an experiment that are still current, in the order of its records."""
    return Finished(tuple(_match(experiment, scale, current_lines(results_path(folder, experiment, scale)))))


def _match(experiment: Experiment, scale: Scale, stored: Mapping[str, Json]) -> Iterator[StoredRun]:
    for record in experiment.records(scale):
        line = stored.get(hash_config(record.config.identity))
        if line is not None:
            run = RunDirectory(locate(record, Path("runs")))
            yield StoredRun(record, run, line["measured"], line)
