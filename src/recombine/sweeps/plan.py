"""The plan of a sweep: the runs that a function in a Python file returns.

    from recombine import default_run, grid, over_seeds, search

    def runs():
        attentions = grid(default_run("fuzzy-logic", "tiny"), attention=("softmax", "hyla"))
        return over_seeds(search(attentions, learning_rate=(1e-3, 3e-3)), seeds=range(3))

`recombine sweep FILE.py` calls `runs`; `FILE.py:NAME` calls another function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from recombine.foundation.errors import InputError
from recombine.foundation.plugins import describe_error, load_object
from recombine.sweeps.records import ROLES, Record, as_records, as_setting
from recombine.sweeps.status import FORMAT, FORMAT_VERSION
from recombine.training.config import RunConfig
from recombine.training.schema import Json

FUNCTION = "runs"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The distinct runs of a sweep, and the names of those that were listed more than once."""

    source: str
    records: tuple[Record, ...]
    repeated: tuple[str, ...] = ()

    @property
    def by_key(self) -> dict[str, Record]:
        """Records by the name of their run directory."""
        return {record.config.directory_name: record for record in self.records}


def load_plan(specification: str) -> Plan:
    """The plan that `FILE.py`, `FILE.py:FUNCTION` or `package.module:FUNCTION` describes. This runs that code."""
    named = ":" in specification
    source = specification if named else f"{specification}:{FUNCTION}"
    if not named and not specification.endswith(".py"):
        raise InputError(f"sweep {specification!r}: expected FILE.py, FILE.py:FUNCTION or package.module:FUNCTION")
    function = load_object(source)
    if not callable(function):
        raise InputError(f"{source} is not a function: expected one without arguments that returns runs")
    try:
        runs = function()
        listed = [runs] if isinstance(runs, RunConfig | Record) else list(runs)
    except Exception as error:
        path = Path(source.rpartition(":")[0]).resolve()
        raise InputError(f"{source} failed at {describe_error(error, path)}") from error
    return make_plan(listed, source)


def make_plan(runs: Iterable[Any], source: str) -> Plan:
    """The distinct runs among those listed; of several with one hash, the first is kept."""
    listed = list(runs)
    for number, run in enumerate(listed, start=1):
        if not isinstance(run, RunConfig | Record):
            raise InputError(f"{source}: item {number} is a {type(run).__name__}: expected a RunConfig or a Record")
    if not listed:
        raise InputError(f"{source} returned no runs: expected at least one")
    distinct: dict[str, Record] = {}
    repeated = []
    for record in (record.prepare() for record in name_settings(as_records(listed))):
        if record.config.directory_name in distinct:
            repeated.append(record.text)
        else:
            distinct[record.config.directory_name] = record
    return Plan(source=source, records=tuple(distinct.values()), repeated=tuple(repeated))


def name_settings(records: Sequence[Record]) -> list[Record]:
    """Give records settings that tell them apart, so that scores of unlike runs are never compared or averaged as one.

    Plain configurations get the fields in which they differ from each other. Records with the same settings, such as the
    same grid for two tasks, get the first of task, model and their fields that differs, apart from seeds.
    """
    rows = [_flatten(record.config) for record in records]
    varied = _find_varied([row for record, row in zip(records, rows, strict=True) if not record.settings])
    named = [
        record if record.settings else _add_settings(record, row, varied)
        for record, row in zip(records, rows, strict=True)
    ]
    while True:
        groups: dict[Any, list[int]] = {}
        for number, record in enumerate(named):
            compared = tuple(item for item in record.settings.items() if item[0] not in record.searched)
            groups.setdefault(compared, []).append(number)
        changed = False
        for members in (members for members in groups.values() if len(members) > 1):
            known = {"model_seed", *(name for number in members for name in named[number].settings)}
            added = [name for name in _find_varied([rows[number] for number in members]) if name not in known][:1]
            for number in members:
                named[number] = _add_settings(named[number], rows[number], added)
            changed = changed or bool(added)
        if not changed:
            return named


def _find_varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, other than the seed, whose values differ between rows."""
    names = dict.fromkeys(name for row in rows for name in row if name != "seed")
    return [name for name in names if len({repr(row.get(name)) for row in rows}) > 1]


def _add_settings(record: Record, row: Mapping[str, Any], names: Sequence[str]) -> Record:
    added = {name: as_setting(row[name]) for name in names if name in row}
    return replace(record, settings={**record.settings, **added})


def _flatten(config: RunConfig) -> dict[str, Any]:
    """The kinds of task and model and all fields, with those of the training first, because they are most often varied."""
    owners = [getattr(config, role) for role in reversed(ROLES)]
    kinds = {"task": config.task.name, "model": config.model.kind}
    return kinds | {field.name: getattr(owner, field.name) for owner in owners for field in fields(owner)}


def describe_plan(plan: Plan) -> Json:
    """The contents of `sweep.json`, from which `recombine sweep status` shows how far the sweep is."""
    metrics: dict[Any, str] = {}  # by task, because finding the main metric takes a batch
    runs = []
    for key, record in plan.by_key.items():
        task = replace(record.config.task, seed=0)
        if task not in metrics:
            metrics[task] = task.headline
        metric = metrics[task]
        runs.append(
            {
                "run": key,
                "settings": dict(record.settings),
                "searched": list(record.searched),
                "seed": record.seed,
                "steps": record.config.training.steps,
                "metric": metric,
                "higher_is_better": task.metric(metric).higher_is_better,
            }
        )
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "source": plan.source, "runs": runs}
