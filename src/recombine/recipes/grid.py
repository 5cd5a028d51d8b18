"""Grids of runs: every combination of named settings of the task, the model and the training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from recombine.errors import InputError
from recombine.recipes.record import Record, Setting, as_records
from recombine.run import RunConfig

ROLES = ("task", "model", "training")


def grid(runs: RunConfig | Record | Iterable[RunConfig | Record], **values: Iterable[Any]) -> list[Record]:
    """Every run with every combination of values: `grid(run, attention=("softmax", "hyla"), num_heads=(4, 8))`.

    A name is that of a field of the run's task, model or training. It becomes a setting of the record.
    """
    records = as_records(runs)
    for name, listed in values.items():
        records = [change_setting(record, name, value) for record in records for value in _list_values(name, listed)]
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


def _list_values(name: str, values: Any) -> tuple[Any, ...]:
    listed = (values,) if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if not listed:
        raise InputError(f"setting {name!r} has no values: expected at least one")
    return listed


def as_setting(value: Any) -> Setting:
    """A value as a setting of a record: a number or text."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)
