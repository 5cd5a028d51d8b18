"""What an experiment is: records to run, and the tables and figures made of the finished runs.

A `Record` is one run with its named settings as data. The same records reach the command line, the tables and the figures,
so that nothing is ever read back from text. To add an experiment, subclass `Experiment` and yield its records:

    class Widths(Experiment):
        name = "widths"
        question = "Do wider networks recombine modules better?"
        metric = "r2_pooled"
        compared = "width"

        def records(self, scale):
            for width in (16, 64):
                run = default_run("hyperteacher", scale)
                yield Record(settings={"width": width}, config=replace(run, model=replace(run.model, hidden_dim=width)))

A file in a folder of `recipes` is found by itself; one anywhere else is named on the command line:
`recombine reproduce path/to/file.py:Widths`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from recombine.progress import track
from recombine.run import RunConfig
from recombine.store import Json, RunDirectory
from recombine.tables import Column, Table
from recombine.tasks.base import Scale

Setting = str | int | float
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number from a paper, with its standard error if known, and where it is printed."""

    value: float
    error: float | None = None
    source: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of an experiment: its settings by name, its configuration, and the published number if there is one."""

    settings: Mapping[str, Setting]
    config: RunConfig
    published: Published | None = None

    @property
    def seed(self) -> int:
        return self.config.task.seed

    @property
    def key(self) -> tuple[tuple[str, Setting], ...]:
        """The settings, for use as a dictionary key; equal for runs that differ in their seed only."""
        return tuple(self.settings.items())

    @property
    def text(self) -> str:
        """The settings and the seed in words."""
        return describe_settings({**self.settings, "seed": self.seed})

    def with_seed(self, seed: int) -> Record:
        return replace(self, config=replace(self.config, task=replace(self.config.task, seed=seed)))

    def with_steps(self, steps: int) -> Record:
        settings = {**self.settings, "steps": steps} if "steps" in self.settings else self.settings
        config = replace(self.config, training=replace(self.config.training, steps=steps))
        return replace(self, settings=settings, config=config)


def describe_settings(settings: Mapping[str, Setting]) -> str:
    """Settings in words: `model vanilla, trunk softmax`."""
    return ", ".join(f"{show_setting(name)} {show_setting(value)}" for name, value in settings.items())


def show_setting(value: Setting) -> str:
    """The name or the value of a setting in words."""
    return (
        value.replace("_", " ") if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def matches(settings: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> bool:
    """Whether settings have all the wanted values."""
    return all(name in settings and settings[name] == value for name, value in wanted.items())


def over_seeds(records: Iterable[Record], seeds: Iterable[int]) -> Iterator[Record]:
    """Every record with every seed: another split, other data, other initial parameters."""
    seeds = tuple(seeds)
    for record in records:
        for seed in seeds:
            yield record.with_seed(seed)


@dataclass(frozen=True)
class FinishedRun:
    """A record and the run directory that it was trained in."""

    record: Record
    run: RunDirectory

    @cached_property
    def result(self) -> Json:
        return self.run.read_json("result.json")

    @cached_property
    def certificate(self) -> Json:
        return dict(self.run.read_json("split.json")["certificate"])

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


@dataclass(frozen=True)
class Finished:
    """All finished runs of an experiment."""

    runs: tuple[FinishedRun, ...]

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


class Experiment(ABC):
    """A question, the records that answer it, and the tables and figures made of the finished runs."""

    name: ClassVar[str]
    question: ClassVar[str]
    metric: ClassVar[str]
    split: ClassVar[str] = "ood"
    compared: ClassVar[str | None] = None
    """The setting whose values are compared: differences are to its first value, with all other settings equal."""
    default_scale: ClassVar[Scale] = "small"

    @abstractmethod
    def records(self, scale: Scale) -> Iterable[Record]:
        """The runs of the experiment at a scale, the most important first."""

    def tables(self, finished: Finished, device: str) -> list[Table]:
        """What the runs say; by default a comparison of one score. Networks run on `device`."""
        from recombine.recipes.comparison import compare_scores, list_references

        return [compare_scores(self, finished), list_references(self, finished)]

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        """Write the experiment's figures into a folder; returns their paths."""
        return []

    @property
    def has_figures(self) -> bool:
        return type(self).figures is not Experiment.figures
