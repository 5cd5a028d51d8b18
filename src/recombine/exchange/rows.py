"""Instances of a task as a table. Every task has the columns below; a task adds its own with `Task.columns`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import torch
from torch import Tensor

from recombine.errors import InputError
from recombine.exchange.identity import RowId, hash_export
from recombine.memory import require_memory
from recombine.settings import settings_as_dict
from recombine.tasks import Batch, SplitName, Task
from recombine.tasks.evaluation import evaluation_batches

COLUMNS = {
    "row_id": "identifier of the row; a prediction must have the same one",
    "split": "split of the row",
    "row": "number of the row in its split",
    "composition": "number of the composition, unique over all splits; test has the numbers of train",
    "modules": "numbers of the modules in the composition",
    "module_names": "names of these modules",
    "inputs": "what a model receives: one list of features per token",
    "target": "what a model should predict",
}


def describe_columns(task: Task) -> dict[str, str]:
    """What each column of an export of this task holds."""
    own = task.columns(task.sample(task.splits[0], 0, batch_size=1))
    splits = ", ".join(f"{split} ({task.split_title(split)})" for split in task.splits)
    return COLUMNS | {"split": f"split of the row: {splits}"} | {name: task.column_info.get(name, "") for name in own}


def make_rows(task: Task, splits: Sequence[SplitName], num_instances: int, *, blind: bool = False) -> pa.Table:
    """The first rows of each split, those that evaluation uses. With `blind`, only identities and inputs."""
    if blind and task.requires_causal_model:
        raise InputError(
            f"task {task.name!r} cannot be exported without targets, because its later inputs reveal earlier answers: "
            "expected a task that does not require a causal model"
        )
    about = describe_columns(task)
    export = hash_export(task)
    num_numbers = len(splits) * num_instances * task.sequence_length * task.input_dim
    require_memory(4 * num_numbers, f"an export of {num_instances:,} instances of {len(splits)} splits")
    parts = []
    for split in splits:
        first = 0
        names = _name_modules(task, split)
        for batch in evaluation_batches(task, split, num_instances):
            rows = range(first, first + len(batch))
            columns = {
                "row_id": pa.array([str(RowId(split, row, num_instances, export)) for row in rows]),
                "split": pa.array([split] * len(batch)),
                "row": pa.array(rows, pa.int32()),
            }
            if not blind:
                columns |= _describe_rows(task, split, batch, names)
            columns["inputs"] = as_array(batch.inputs)
            if not blind:
                columns["target"] = as_array(batch.targets)
                columns |= {name: as_array(column) for name, column in task.columns(batch).items()}
            fields = [
                pa.field(name, column.type, metadata={"description": about[name]}) for name, column in columns.items()
            ]
            parts.append(pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields)))
            first += len(batch)
    return pa.concat_tables(parts).replace_schema_metadata(describe_export(task))


def describe_export(task: Task) -> dict[str, str]:
    """What the metadata of a file say about its rows."""
    return {
        "task": task.name,
        "settings": json.dumps(settings_as_dict(task)),
        "split_sha256": task.split.certificate.sha256,
        "export": hash_export(task),
    }


def as_array(column: Tensor) -> pa.Array:
    """A tensor as nested lists, without a copy of its numbers; the first dimension is that of the rows."""
    column = column.detach().cpu().contiguous()
    array = pa.array(column.flatten().numpy())
    for size, count in _levels(column):
        array = pa.ListArray.from_arrays(pa.array(range(0, size * count + 1, size), pa.int32()), array)
    return array


def _levels(column: Tensor) -> list[tuple[int, int]]:
    """Length and number of the lists at each level, the innermost first."""
    shape = column.shape
    return [(shape[level], int(torch.Size(shape[:level]).numel())) for level in range(len(shape) - 1, 0, -1)]


def _name_modules(task: Task, split: SplitName) -> tuple[pa.Array, pa.Array]:
    """Numbers and names of the modules of each composition of a split."""
    compositions = task.split.compositions(split)
    known = {
        module: task.describe((module,))
        for module in sorted({module for composition in compositions for module in composition})
    }
    names = [[known[module] for module in composition] for composition in compositions]
    return pa.array([list(composition) for composition in compositions], pa.list_(pa.int32())), pa.array(
        names, pa.list_(pa.string())
    )


def _first_number(task: Task, split: SplitName) -> int:
    """The number of a split's first composition; `test` has those of `train`, all others come one after another."""
    if split in ("train", "test"):
        return 0
    distinct: list[SplitName] = [name for name in task.splits if name != "test"]
    return sum(len(task.split.compositions(name)) for name in distinct[: distinct.index(split)])


def _describe_rows(task: Task, split: SplitName, batch: Batch, names: tuple[pa.Array, pa.Array]) -> dict[str, pa.Array]:
    number = pa.array(batch.composition.cpu().numpy())
    return {
        "composition": pa.array((batch.composition.cpu() + _first_number(task, split)).int().numpy()),
        "modules": names[0].take(number),
        "module_names": names[1].take(number),
    }
