"""Grids of runs: every combination of named settings of the task, the model and the training."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from recombine.errors import InputError
from recombine.recipes.experiment import Record, Setting, as_records
from recombine.run import RunConfig

ROLES = ("task", "model", "training")


def grid(runs: RunConfig | Record | Iterable[RunConfig | Record], **values: Iterable[Any]) -> Iterator[Record]:
    """Every run with every combination of values: `grid(run, attention=("softmax", "hyla"), num_heads=(4, 8))`.

    A name is that of a field of the run's task, model or training. It becomes a setting of the record.
    """
    points = {name: _list_values(name, each) for name, each in values.items()}
    for record in as_records(runs):
        for point in itertools.product(*points.values()):
            changed = record
            for name, value in zip(points, point, strict=True):
                changed = change_setting(changed, name, value)
            yield changed


def search(runs: RunConfig | Record | Iterable[RunConfig | Record], **values: Iterable[Any]) -> Iterator[Record]:
    """Like `grid`, but the values are hyperparameters: results show the best of them, chosen on `test`, never on `ood`."""
    for record in grid(runs, **values):
        yield replace(record, searched=tuple(dict.fromkeys((*record.searched, *values))))


def change_setting(record: Record, name: str, value: Any) -> Record:
    """The record with another value of a field of its task, model or training."""
    config = record.config
    owners = [role for role in ROLES if name in {field.name for field in fields(getattr(config, role))}]
    if not owners:
        known = [field.name for role in ROLES for field in fields(getattr(config, role))]
        raise InputError(f"unknown setting {name!r}: expected one of {', '.join(known)}")
    role = owners[0]
    changed = replace(config, **{role: replace(getattr(config, role), **{name: value})})
    return replace(record, settings={**record.settings, name: _as_setting(value)}, config=changed)


def _list_values(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    listed = (values,) if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if not listed:
        raise InputError(f"setting {name!r} has no values: expected at least one")
    return listed


def _as_setting(value: Any) -> Setting:
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)
