"""Results of experiments as small files: scores, curves and measured numbers of every run, without its parameters.

`results/<experiment>-<scale>.jsonl` has one line per run, so that the evidence behind a claim can be kept under version
control and read without the run directories. A stored run is used only while it is the run that the code would make now: its
hash, which covers names, versions and settings, must be that of a record of the experiment, and the version of the evaluation
must be the current one. `results/<calculation>.json` has the numbers of an experiment without runs, used while its version
and its number of seeds are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict, cast

from recombine.foundation import InputError, parse_json, read_file, replace_file
from recombine.sweeps import Record
from recombine.tasks import Scale, Task
from recombine.training import EVALUATION_VERSION, Json, RunDirectory, describe_environment, hash_config, score_seeds
from recombine_papers.base import Experiment, Finished, FinishedRun

if TYPE_CHECKING:
    from recombine_papers.experiment import Calculation, PaperExperiment

SAME_VALUES = (2, EVALUATION_VERSION)  # versions of the evaluation whose values are equal; intervals come from the sums
DIGITS = 7  # significant digits of stored numbers: float32 has no more
ROUNDING = 1e-5  # of a ratio of sums with so many digits
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
FileCells = dict[str, str]  # the row of a file in `results/README.md`, by column


class StoredVersions(TypedDict):
    """The version of a result that is compared here; the others are part of the hash."""

    evaluation: int


class StoredResult(TypedDict):
    """The keys of a stored result that are read here."""

    seconds: float
    steps: int
    versions: StoredVersions
    scores: dict[str, dict[str, Json]]
    composition_sums: dict[str, Json]


class StoredLine(TypedDict):
    """A line of a file of results."""

    hash: str
    seed: int
    result: StoredResult
    certificate: Json
    environment: Json
    measured: Json


class StoredEnvironment(TypedDict):
    """Where numbers were computed."""

    recombine: str
    source_sha256: str
    python: str
    torch: str
    processor: str
    num_threads: int


class StoredNumbers(TypedDict):
    """The file of a calculation."""

    version: int
    computed: dict[str, list[float]]
    seconds: float
    finished: str
    environment: StoredEnvironment


@dataclass(frozen=True)
class StoredRun(FinishedRun):
    """A finished run of which only the stored numbers are left; `run` names its directory, which need not exist."""

    stored: Json = field(default_factory=dict)

    @cached_property
    def result(self) -> Json:
        return dict(self.stored["result"])

    @cached_property
    def certificate(self) -> Json:
        return dict(self.stored["certificate"])

    @property
    def curve(self) -> list[Json]:
        return [row for row in self.stored.get("curve", []) if "scores" in row]

    @property
    def core_hours(self) -> float:
        return count_core_hours([self.stored])


def locate(record: Record, out: Path) -> Path:
    """The directory in which a record is trained; where that depends on prepared files, the latest finished one."""
    config = record.config
    found = [out / config.directory_name]
    if config.task.prepared_settings:
        wanted = hash_config(without_prepared(config.as_dict(), config.task))
        results = sorted(out.glob(f"{config.name}-*/result.json"), key=lambda path: path.stat().st_mtime)
        runs = (RunDirectory(path.parent) for path in results)
        found += [run.path for run in runs if hash_config(without_prepared(run.config, config.task)) == wanted]
    return found[-1]


def without_prepared(contents: Json, task: Task) -> Json:
    """A configuration without the settings that `Task.prepare` fills in."""
    settings = {name: value for name, value in contents["task"].items() if name not in task.prepared_settings}
    return {"task": settings, "model": contents["model"], "training": contents["training"]}


def collect(experiment: Experiment, scale: Scale, out: Path, device: str = "auto") -> list[Json]:
    """The stored form of every finished run of an experiment below a folder of runs."""
    records = list(experiment.records(scale)) if out.is_dir() else []
    located = [(record, locate(record, out)) for record in records]
    runs = tuple(FinishedRun(record, RunDirectory(path)) for record, path in located if (path / "result.json").exists())
    return [summarise(run) for run in experiment.measure_runs(Finished(runs), device).runs]


def summarise(run: FinishedRun) -> Json:
    """The stored form of a run: enough for every table, interval and curve."""
    environment = run.run.read_json("environment.json")
    finished = (run.run.path / "result.json").stat().st_mtime
    return {
        "settings": dict(run.record.settings),
        "seed": run.record.seed,
        "hash": hash_config(run.record.config.identity),
        "result": {key: shorten_numbers(run.result[key]) for key in RESULT_KEYS},
        "certificate": run.certificate,
        "prepared": {name: run.run.config["task"][name] for name in run.record.config.task.prepared_settings},
        "environment": {key: environment[key] for key in ENVIRONMENT_KEYS},
        "interrupted": len(environment.get("previous", [])),
        "finished": datetime.fromtimestamp(finished, UTC).date().isoformat(),
        "measured": shorten_numbers(dict(run.measured)),
        "curve": shorten_numbers(summarise_curve(run.run.read_metrics())),
    }


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
    """The same data with numbers rounded to their significant digits; JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: shorten_numbers(item) for key, item in value.items()}
    return [shorten_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def results_path(folder: Path, experiment: Experiment, scale: Scale) -> Path:
    return folder / f"{experiment.name}-{scale}.jsonl"


def write_results(folder: Path, experiment: Experiment, scale: Scale, runs: Sequence[Json]) -> bool:
    """Add runs to the file of an experiment, in place of earlier results of the same runs; whether anything changed."""
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
    """Copy stored runs to every experiment that shares them; returns the files that changed.

    Experiments that measure numbers inside the networks are left out, because the runs of others do not have them.
    """
    files = [(experiment, scale) for experiment in experiments for scale in experiment.judged_scales]
    known = [current_lines(results_path(folder, *file)) for file in files]
    stored = {name: line for lines in known for name, line in lines.items()}
    changed = []
    for (experiment, scale), lines in zip(files, known, strict=True):
        if type(experiment).measures is not Experiment.measures:
            continue
        records = {hash_config(record.config.identity): record for record in experiment.records(scale)}
        shared = [
            {**stored[name], "settings": dict(record.settings), "measured": {}}
            for name, record in records.items()
            if name in stored and name not in lines
        ]
        if write_results(folder, experiment, scale, shared):
            changed.append(results_path(folder, experiment, scale))
    return changed


def check_scores(line: Json, path: str) -> int:
    """Require the scores of a stored run to be the ratios of its sums over compositions; returns how many there are."""
    count = 0
    for split, metrics in line["result"]["composition_sums"].items():
        for metric, sums in metrics.items():
            value, stored = score_seeds([sums]).value, line["result"]["scores"][split][metric]["value"]
            if not math.isclose(value, stored, rel_tol=ROUNDING, abs_tol=ROUNDING):
                raise InputError(
                    f"{path}: run {line['hash']} has {metric} {stored} on {split}: expected {value}, by its sums"
                )
            count += 1
    return count


def current_lines(path: Path) -> dict[str, Json]:
    """The stored runs of a file whose scores the current evaluation would give, by their hash."""
    lines = read_lines(path)
    return {line["hash"]: line for line in lines if line["result"]["versions"]["evaluation"] in SAME_VALUES}


def read_lines(path: Path) -> list[Json]:
    """The stored runs of a file, or none if there is no file."""
    if not path.exists():
        return []
    try:
        lines = read_file(path).decode().splitlines()
        return [parse_json(line, StoredLine, f"line {n}") for n, line in enumerate(lines, start=1)]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected results that `reproduce claims` wrote") from None


def read_results(folder: Path, experiment: Experiment, scale: Scale) -> Finished:
    """The stored runs of an experiment that are still current, in the order of its records."""
    lines = current_lines(results_path(folder, experiment, scale))

    def match() -> Iterator[StoredRun]:
        for record in experiment.records(scale):
            line = lines.get(hash_config(record.config.identity))
            if line is not None:
                yield StoredRun(record, RunDirectory(locate(record, Path("runs"))), line["measured"], line)

    return Finished(tuple(match()))


def read_files(experiment: PaperExperiment, folder: Path) -> dict[str, list[Json]]:
    """The stored runs of an experiment by the name of their file."""
    paths = [results_path(folder, experiment, scale) for scale in experiment.judged_scales]
    return {path.name: lines for path in paths if (lines := read_lines(path))}


def count_core_hours(lines: Sequence[Json]) -> float:
    """Training time of runs, multiplied by their number of threads."""
    return sum(line["result"]["seconds"] * line["environment"]["num_threads"] for line in lines) / 3600


def numbers_path(folder: Path, experiment: Calculation) -> Path:
    return folder / f"{experiment.name}.json"


def read_numbers(folder: Path, experiment: Calculation) -> StoredNumbers | None:
    """The stored numbers of a calculation, or None if its version, seeds or claims are others."""
    path = numbers_path(folder, experiment)
    if not path.exists():
        return None
    try:
        numbers: StoredNumbers = parse_json(read_file(path), StoredNumbers, "it")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected numbers that `reproduce claims` wrote") from None
    wanted = {name for claim in experiment.claims for name in claim.quantities}
    seeds = {len(values) for values in numbers["computed"].values()}
    current = numbers["version"] == experiment.version and seeds == {experiment.num_seeds}
    return numbers if current and wanted <= numbers["computed"].keys() else None


def read_computed(folder: Path, experiment: Calculation) -> Finished:
    """The stored numbers of a calculation as those of an experiment."""
    numbers = read_numbers(folder, experiment)
    if numbers is None:
        return Finished(())
    return Finished((), {name: tuple(values) for name, values in numbers["computed"].items()}, count_hours(numbers))


def write_numbers(folder: Path, experiment: Calculation) -> bool:
    """Calculate and store what is not stored yet; whether anything changed."""
    if read_numbers(folder, experiment) is not None:
        return False
    environment: Mapping[str, Any] = describe_environment("cpu")
    start = perf_counter()
    computed = experiment.complete(Finished(())).computed
    numbers: StoredNumbers = {
        "version": experiment.version,
        "computed": shorten_numbers(computed),
        "seconds": round(perf_counter() - start, 2),
        "finished": datetime.now(UTC).date().isoformat(),
        "environment": cast(StoredEnvironment, {key: environment[key] for key in ENVIRONMENT_KEYS}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(numbers_path(folder, experiment), (json.dumps(numbers, indent=1) + "\n").encode())
    return True


def count_hours(numbers: StoredNumbers) -> float:
    """Core-hours of a calculation."""
    return numbers["seconds"] * numbers["environment"]["num_threads"] / 3600


def describe_files(experiment: PaperExperiment, folder: Path) -> list[FileCells]:
    """The row of each file of an experiment."""
    return [
        describe_file(
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


def describe_numbers(experiment: Calculation, folder: Path) -> list[FileCells]:
    """The row of the file of a calculation, if there is one."""
    numbers = read_numbers(folder, experiment)
    if numbers is None:
        return []
    row = describe_file(
        numbers_path(folder, experiment).name,
        runs="none",
        seeds=range(experiment.num_seeds),
        steps=(),
        core_hours=count_hours(numbers),
        interrupted="",
        finished=[numbers["finished"]],
        environments=[numbers["environment"]],
    )
    return [row]


def describe_file(
    name: str,
    *,
    runs: str,
    seeds: Iterable[int],
    steps: Iterable[int],
    core_hours: float,
    interrupted: str,
    finished: Sequence[str],
    environments: Sequence[Mapping[str, Any]],
) -> FileCells:
    """A file of results, when and where it was made, and its cost."""
    return {
        "file": f"`{name}`",
        "runs": runs,
        "seeds": list_values(seeds),
        "steps": list_values(steps),
        "core-hours": f"{core_hours:.2f}",
        "interrupted": interrupted,
        "finished": " to ".join(dict.fromkeys((min(finished), max(finished)))),
        "processor": list_values(environment["processor"] for environment in environments),
        "code": list_values(environment["source_sha256"][:8] for environment in environments),
    }


def list_values(values: Iterable[int | str]) -> str:
    """The distinct values, sorted."""
    return ", ".join(map(str, sorted(set(values))))
