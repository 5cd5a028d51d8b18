"""The finished runs of an experiment, alone, in groups that differ in their seed only, and all together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from recombine.progress import track
from recombine.recipes.record import Published, Record, Setting, matches
from recombine.seeds import SeedScore, score_results
from recombine.store import Json, RunDirectory
from recombine.tables import Column, describe_settings, show_setting

Value = TypeVar("Value")


@dataclass(frozen=True)
class FinishedRun:
    """A record and the run directory that it was trained in."""

    record: Record
    run: RunDirectory
    measured: Mapping[str, float] = field(default_factory=dict)  # what `Experiment.measures` read from it

    @cached_property
    def result(self) -> Json:
        return self.run.read_json("result.json")

    @cached_property
    def certificate(self) -> Json:
        return dict(self.run.read_json("split.json", complete=True)["certificate"])

    @property
    def curve(self) -> list[Json]:
        """The points of the learning curve that have scores."""
        return [row for row in self.run.read_metrics() if "scores" in row]

    def score(self, split: str, metric: str) -> float | None:
        """A score, or None where the run has no such split or metric."""
        value = self.result["scores"].get(split, {}).get(metric, {}).get("value")
        return None if value is None else float(value)

    def sums(self, split: str, metric: str) -> list[list[float]]:
        """Numerators and denominators of a metric per composition."""
        return list(self.result["composition_sums"][split][metric])


@dataclass(frozen=True)
class Group:
    """The finished runs that have the same settings, one per seed."""

    settings: Mapping[str, Setting]
    runs: tuple[FinishedRun, ...]

    @property
    def text(self) -> str:
        return describe_settings(self.settings)

    @property
    def published(self) -> Published | None:
        return self.runs[0].record.published

    def scores(self, split: str, metric: str) -> list[float]:
        """One score per seed."""
        values = [run.score(split, metric) for run in self.runs]
        return [value for value in values if value is not None]

    def score(self, split: str, metric: str) -> SeedScore:
        """The mean over seeds with its interval."""
        return score_results([run.result for run in self.runs], split, metric)

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(run.record.seed for run in self.runs)

    def with_seeds(self, seeds: Collection[int]) -> Group | None:
        """The runs of these seeds, or None if there are none."""
        runs = tuple(run for run in self.runs if run.record.seed in seeds)
        return Group(self.settings, runs) if runs else None

    def measured(self, quantity: str) -> list[float]:
        """One measured number per seed that has it."""
        return [run.measured[quantity] for run in self.runs if quantity in run.measured]


@dataclass(frozen=True)
class Finished:
    """All finished runs of an experiment, and what it computes without runs."""

    runs: tuple[FinishedRun, ...]
    computed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by name, one number per seed
    computed_hours: float = 0.0  # core-hours of what was computed

    def __bool__(self) -> bool:
        return bool(self.runs or self.computed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all settings, in the order in which they first occur."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.record.settings))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Runs with the same settings together, in the order of the records."""
        members: dict[Any, list[FinishedRun]] = {}
        for run in self.runs:
            members.setdefault(run.record.key, []).append(run)
        return tuple(Group(runs[0].record.settings, tuple(runs)) for runs in members.values())

    def find(self, **wanted: Setting) -> Group | None:
        """The first group with these settings."""
        return next((group for group in self.groups if matches(group.settings, wanted)), None)

    def find_all(self, *wanted: Mapping[str, Setting]) -> list[Group] | None:
        """The groups with each of these settings, by the seeds that all of them have; None if there are no such runs."""
        found = [group for settings in wanted if (group := self.find(**settings)) is not None]
        if len(found) < len(wanted):
            return None
        shared = frozenset.intersection(*(group.seeds for group in found))
        chosen = [group.with_seeds(shared) for group in found]
        return [group for group in chosen if group is not None] or None

    def measure(self, read: Callable[[RunDirectory], Value]) -> dict[Path, Value]:
        """What a function reads from each run directory, by path; directories that several records share are read once."""
        values: dict[Path, Value] = {}
        distinct = {run.run.path: run for run in self.runs}
        for path, run in track(distinct.items(), "reading runs"):
            values[path] = read(run.run)
        return values

    @property
    def setting_columns(self) -> tuple[Column, ...]:
        """The columns that `show_settings` fills."""
        return tuple(Column(name=show_setting(name), format="plain") for name in self.names)

    def show_settings(self, settings: Mapping[str, Setting]) -> tuple[Setting | None, ...]:
        """The values of a row's settings, one per name; None for a setting that it does not have."""
        return tuple(
            value.replace("_", " ") if isinstance(value := settings.get(name), str) else value for name in self.names
        )
