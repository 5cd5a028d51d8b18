"""One run of an experiment as data: its settings by name, its configuration, and the published number.

Grids of runs: every combination of named settings of the task, the model and the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from recombine.foundation.display import describe_settings
from recombine.foundation.errors import InputError
from recombine.training.config import RunConfig

Setting = str | int | float


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
    searched: tuple[str, ...] = ()
    """Names of settings that are hyperparameters: of their values, the best is chosen, on `test`."""

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

    def prepare(self) -> Record:
        """The record of the run that will be made, so that its directory can be named before it is trained."""
        return replace(self, config=self.config.prepare())

    def with_seed(self, seed: int) -> Record:
        return replace(self, config=replace(self.config, task=replace(self.config.task, seed=seed)))

    def with_steps(self, steps: int) -> Record:
        settings = {**self.settings, "steps": steps} if "steps" in self.settings else self.settings
        config = replace(self.config, training=replace(self.config.training, steps=steps))
        return replace(self, settings=settings, config=config)


def matches(settings: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> bool:
    """Whether settings have all the wanted values."""
    return all(name in settings and settings[name] == value for name, value in wanted.items())


def as_records(runs: RunConfig | Record | Iterable[RunConfig | Record]) -> list[Record]:
    """One or several runs as records; a plain configuration has no named settings."""
    listed = [runs] if isinstance(runs, RunConfig | Record) else list(runs)
    return [Record(settings={}, config=run) if isinstance(run, RunConfig) else run for run in listed]


def over_seeds(runs: RunConfig | Record | Iterable[RunConfig | Record], seeds: Iterable[int]) -> Iterator[Record]:
    """Every run with every seed (another split, other data, other initial parameters); all with the first seed come first."""
    records = as_records(runs)
    return iter([record.with_seed(seed) for seed in seeds for record in records])


ROLES = ("task", "model", "training")


def grid(runs: RunConfig | Record | Iterable[RunConfig | Record], **values: Iterable[Any]) -> list[Record]:
    """Every run with every combination of values: `grid(run, attention=("softmax", "hyla"), num_heads=(4, 8))`.

    A name is that of a field of the run's task, model or training. It becomes a setting of the record.
    """
    records = as_records(runs)
    for name, listed in values.items():
        choices = [listed] if isinstance(listed, str) or not isinstance(listed, Iterable) else list(listed)
        if not choices:
            raise InputError(f"setting {name!r} has no values: expected at least one")
        records = [change_setting(record, name, value) for record in records for value in choices]
    return records


def search(runs: RunConfig | Record | Iterable[RunConfig | Record], **values: Iterable[Any]) -> list[Record]:
    """Like `grid`, but the values are hyperparameters: results show the best of them, chosen on `test`, never on `ood`."""
    records = grid(runs, **values)
    return [replace(record, searched=tuple(dict.fromkeys((*record.searched, *values)))) for record in records]


def change_setting(record: Record, name: str, value: Any) -> Record:
    """The record with another value of a field of its task, model or training."""
    config = record.config
    owners = [role for role in ROLES if name in {field.name for field in fields(getattr(config, role))}]
    if not owners:
        known = [field.name for role in ROLES for field in fields(getattr(config, role))]
        raise InputError(f"unknown setting {name!r}: expected one of {', '.join(known)}")
    role = owners[0]
    changed = replace(config, **{role: replace(getattr(config, role), **{name: value})})
    return replace(record, settings={**record.settings, name: as_setting(value)}, config=changed)


def as_setting(value: Any) -> Setting:
    """A value as a setting of a record: a number or text."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)
