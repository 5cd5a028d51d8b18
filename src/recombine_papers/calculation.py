"""Experiments without training: numbers of constructions and counts, which take seconds.

Theorems and counts of the papers have rows on the card of claims too. A `Calculation` computes one number per seed for each
quantity; its claims (`Computes`) say where the numbers must lie. `results/<name>.json` keeps them together with the version
of the calculation, and they are used only while the version is the same.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Any, ClassVar, TypedDict, cast

from recombine.foundation import InputError, Table, find_schema_error, read_file, replace_file
from recombine.sweeps import Finished, Record
from recombine.tasks import Scale
from recombine.training import CONFIDENCE, SeedScore, describe_environment, score_values
from recombine_papers.claims import Between, Claim, Verdict, tabulate_claims
from recombine_papers.experiment import PaperExperiment
from recombine_papers.stored import ENVIRONMENT_KEYS, format_row, shorten_numbers

SMALLEST = 1e-18  # logarithms of differences start here


class Calculation(PaperExperiment):
    """Numbers by name, one per seed, that need no run."""

    metric = ""
    known_before = "all numbers: they are exact, or known from docs/theory.md."
    version: ClassVar[int] = 1
    num_seeds: ClassVar[int] = 3

    @abstractmethod
    def compute(self, seed: int) -> Mapping[str, float]:
        """The numbers with one seed."""

    def complete(self, finished: Finished) -> Finished:
        """The numbers of all seeds."""
        rows = [dict(self.compute(seed)) for seed in range(self.num_seeds)]
        names = list(rows[0]) if rows else []
        if not names or any(list(row) != names for row in rows):
            raise InputError(f"experiment {self.name!r} computes different numbers per seed: expected the same names")
        if odd := [name for row in rows for name, value in row.items() if not math.isfinite(value)]:
            raise InputError(f"experiment {self.name!r} computes a number that is not finite: {odd[0]}")
        return Finished(finished.runs, computed={name: tuple(row[name] for row in rows) for name in names})

    @property
    def judged_scales(self) -> tuple[Scale, ...]:
        return (self.default_scale,)

    def records(self, scale: Scale) -> Iterator[Record]:
        return iter(())

    def store(self, results: Path, scale: Scale, runs: Path) -> list[Path]:
        return [numbers_path(results, self)] if write_numbers(results, self) else []

    def read(self, results: Path, scale: Scale) -> Finished:
        stored = read_numbers(results, self)
        if stored is None:
            return Finished(())
        computed = {name: tuple(values) for name, values in stored["computed"].items()}
        return Finished((), computed, count_hours(stored))

    def describe_stored(self, results: Path) -> list[str]:
        stored = read_numbers(results, self)
        return [] if stored is None else [describe_numbers(self, results, stored)]

    def command(self, scale: Scale) -> str:
        return f"recombine reproduce {self.name}"

    def describe_score(self, scale: Scale) -> str:
        return ""

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [self.summarise(finished)]

    def summarise(self, finished: Finished) -> Table:
        return tabulate_claims(self.claims, self, finished)


@dataclass(frozen=True, kw_only=True)
class Computes(Between):
    """A computed number lies between bounds."""

    kind = ("theorem or count", "theorems and counts")
    quantity: str
    exact: bool = False  # a count or a construction that no seed changes
    sample: str = ""  # what an estimate with an interval of its own is over, such as "4,096 puzzles"

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        values = finished.computed.get(self.quantity)
        if values and self.exact:
            return SeedScore(value=values[0], low=min(values), high=max(values), values=values[:1])
        if values and self.sample:
            low, high = (finished.computed[f"{self.quantity}_{end}"][0] for end in ("low", "high"))
            return SeedScore(value=values[0], low=low, high=high, values=values[:1])
        return score_values(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Untested(Claim):
    """A claim that no experiment here can test, and what it would need."""

    tested = False
    needs: str

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        return None

    def judge(self, number: SeedScore) -> Verdict:
        raise AssertionError("a claim that is not tested has no number")

    @property
    def bound(self) -> str:
        return f"needs {self.needs}"


def share_with_interval(name: str, share: float, total: int) -> dict[str, float]:
    """A share of a sample as three numbers: itself, and its 95 % interval after Wilson (1927)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return {name: share, f"{name}_low": max(0.0, centre - half), f"{name}_high": min(1.0, centre + half)}


def log10_of(difference: float) -> float:
    """The logarithm of a number that may be 0."""
    return math.log10(max(difference, SMALLEST))


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


def numbers_path(folder: Path, experiment: Calculation) -> Path:
    return folder / f"{experiment.name}.json"


def read_numbers(folder: Path, experiment: Calculation) -> StoredNumbers | None:
    """The stored numbers of a calculation, or None if its version, seeds or claims are others."""
    path = numbers_path(folder, experiment)
    if not path.exists():
        return None
    try:
        contents = json.loads(read_file(path))
        if (fault := find_schema_error(contents, StoredNumbers)) is not None:
            raise ValueError(fault)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected numbers that `reproduce claims` wrote") from None
    numbers: StoredNumbers = contents
    wanted = {claim.quantity for claim in experiment.claims if isinstance(claim, Computes)}
    complete = wanted <= numbers["computed"].keys()
    seeds = {len(values) for values in numbers["computed"].values()}
    return (
        numbers if (numbers["version"], seeds, complete) == (experiment.version, {experiment.num_seeds}, True) else None
    )


def write_numbers(folder: Path, experiment: Calculation) -> bool:
    """Calculate and store what is not stored yet. Says whether anything changed."""
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


def count_hours(stored: StoredNumbers) -> float:
    """Core-hours of a calculation."""
    return stored["seconds"] * stored["environment"]["num_threads"] / 3600


def describe_numbers(experiment: Calculation, folder: Path, stored: StoredNumbers) -> str:
    """The row of `results/README.md`."""
    return format_row(
        numbers_path(folder, experiment).name,
        runs="none",
        seeds=range(experiment.num_seeds),
        steps=(),
        core_hours=count_hours(stored),
        interrupted="",
        finished=[stored["finished"]],
        environments=[stored["environment"]],
    )
