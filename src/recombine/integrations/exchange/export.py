"""Instances of a task as a table in a file: Parquet, CSV, JSON lines or a NumPy archive, by the suffix of its name.

Every task has the columns below (`COLUMNS`); a task adds its own with `Task.columns`. Lists are JSON in a CSV file. A NumPy
archive has one array per column; columns of lists of different lengths are left out.

Each row has an identity, which predictions for it must carry:

    ood-17-of-1000-960fe3a3c41f      row 17 of the 1,000 rows of split `ood`, of the export with this hash

The hash covers everything that determines the rows: the task with its version and settings, and the SHA-256 of its split.
The number of rows is part of the identity, so that missing rows are noticed wherever they are.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet
from torch import Tensor

from recombine.foundation.errors import InputError, require_memory, settings_as_dict, without_defaults
from recombine.foundation.files import (
    parse_json,
    read_json_lines,
    read_npz,
    require_regular,
    require_unpacked,
    write_output,
)
from recombine.models.base import version_of
from recombine.tasks.base import Task
from recombine.tasks.sampling import Batch, SplitName, evaluation_batches
from recombine.training.directory import hash_config

Suffix = Literal[".parquet", ".csv", ".jsonl", ".npz"]
SUFFIXES: tuple[str, ...] = get_args(Suffix)


def check_suffix(path: Path) -> str:
    """The suffix of a table file, or an error that lists the choices."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{str(path)!r} has the suffix {path.suffix!r}: expected one of {', '.join(SUFFIXES)}")
    return path.suffix.lower()


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table atomically."""
    suffix = check_suffix(path)
    if suffix == ".jsonl":
        content = encode_json_lines(_shorten(table).to_pylist())
    else:
        content = {".parquet": _encode_parquet, ".csv": _encode_csv, ".npz": _encode_npz}[suffix](table)
    write_output(path, content)


def _encode_parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    parquet.write_table(table, content, compression="zstd")
    return content.getvalue()


def encode_json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _encode_csv(table: pa.Table) -> bytes:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in _shorten(table).to_pylist():
        writer.writerow(
            [json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value for value in row.values()]
        )
    return content.getvalue().encode()


def _shorten(table: pa.Table) -> pa.Table:
    """A table whose float32 numbers are written with the nine digits that identify them, not those of float64."""

    def shorten(array: pa.Array) -> pa.Array:
        if pa.types.is_list(array.type):
            return pa.ListArray.from_arrays(array.offsets, shorten(array.values))
        if pa.types.is_float32(array.type):
            return pa.array(np.char.mod("%.9g", array.to_numpy(zero_copy_only=False)).astype(np.float64))
        return array

    return pa.table({name: shorten(table.column(name).combine_chunks()) for name in table.column_names})


def _encode_npz(table: pa.Table) -> bytes:
    arrays = {name: as_numpy(table.column(name)) for name in table.column_names}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **{name: x for name, x in arrays.items() if x is not None})
    return content.getvalue()


def as_numpy(column: pa.ChunkedArray) -> NDArray[Any] | None:
    """A column as one array; None if its lists differ in length."""
    array = column.combine_chunks()
    shape = [len(array)]
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        lengths = pc.unique(pc.list_value_length(array)).to_pylist()
        if len(lengths) != 1 or lengths[0] is None:
            return None
        shape.append(lengths[0])
        array = array.flatten()
    values = np.asarray(array.to_pylist()) if pa.types.is_string(array.type) else array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def read_columns(path: Path) -> Mapping[str, Sequence[Any] | NDArray[Any]]:
    """The columns of a file, as arrays or lists."""
    suffix = check_suffix(path)
    readers = {".parquet": _read_parquet, ".csv": _read_csv, ".jsonl": _read_json_lines, ".npz": read_npz}
    try:
        require_regular(path)
        return readers[suffix](path)
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: expected a file of predictions") from None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, NotImplementedError, csv.Error) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"{str(path)!r} cannot be read ({reason}): expected a {suffix} file") from None


def _read_parquet(path: Path) -> dict[str, Any]:
    batches, num_bytes = [], 0
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            num_bytes += batch.nbytes
            require_unpacked(path, num_bytes)
            batches.append(batch)
        table = pa.Table.from_batches(batches, file.schema_arrow)
    arrays = {name: as_numpy(table.column(name)) for name in table.column_names}
    return {name: table.column(name).to_pylist() if array is None else array for name, array in arrays.items()}


def _read_json_lines(path: Path) -> dict[str, Any]:
    rows = read_json_lines(path)
    names = list(next(iter(rows.values()), {}))
    for number, row in rows.items():
        if not isinstance(row, dict) or row.keys() != set(names):
            known = ", ".join(map(str, names)) or "of an object"
            raise InputError(f"{path} line {number} differs from the lines before it: expected the keys {known}")
    return {name: [row[name] for row in rows.values()] for name in names}


def _read_csv(path: Path) -> dict[str, Any]:
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = [*csv.reader(file)] or [[]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"{path} row {number} has {len(row)} cells: expected {len(header)}, as in the header")
    return {name: [_parse_cell(name, row[column]) for row in rows] for column, name in enumerate(header)}


def _parse_cell(name: str, cell: str) -> Any:
    """A cell of a CSV file: text for identities and responses, otherwise JSON."""
    try:
        return cell if name in ("row_id", "response") else parse_json(cell, Any, name)
    except InputError:
        return cell


PATTERN = re.compile(r"([a-z]+)-(\d{1,12})-of-(\d{1,12})-([0-9a-f]{12})")


class RowId(NamedTuple):
    """One row of an export."""

    split: str
    row: int
    num_rows: int
    export: str

    def __str__(self) -> str:
        return f"{self.split}-{self.row}-of-{self.num_rows}-{self.export}"

    @classmethod
    def parse(cls, text: str) -> RowId:
        match = PATTERN.fullmatch(text)
        if match is None:
            raise InputError(
                f"row_id {text[:60]!r} is not that of an exported row: expected one such as 'ood-17-of-1000-960fe3a3c41f'"
            )
        split, row, num_rows, export = match.groups()
        return cls(split, int(row), int(num_rows), export)


def hash_export(task: Task) -> str:
    """The first 12 digits of SHA-256 of the task, its version, its settings and its split.

    Settings that have their default are left out, so that a setting added later does not change the hash.
    """
    return hash_config(
        {
            "task": task.name,
            "version": version_of(type(task)),
            "settings": without_defaults(task, settings_as_dict(task)),
            "split_sha256": task.split.certificate.sha256,
        }
    )


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
    """Descriptions of the columns of an export of this task."""
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
    num_numbers = len(splits) * num_instances * task.sequence_length * task.input_dim
    require_memory(4 * num_numbers, f"an export of {num_instances:,} instances of {len(splits)} splits")
    about, export = describe_columns(task), hash_export(task)
    tables = []
    for split in splits:
        first = 0
        for batch in evaluation_batches(task, split, num_instances):
            rows = range(first, first + len(batch))
            first += len(batch)
            columns = {
                "row_id": pa.array([str(RowId(split, row, num_instances, export)) for row in rows]),
                "split": pa.array([split] * len(batch)),
                "row": pa.array(rows, pa.int32()),
            }
            if not blind:
                columns |= _describe_compositions(task, split, batch)
            columns["inputs"] = as_array(batch.inputs)
            if not blind:
                columns["target"] = as_array(batch.targets)
                columns |= {name: as_array(column) for name, column in task.columns(batch).items()}
            fields = [
                pa.field(name, column.type, metadata={"description": about[name]}) for name, column in columns.items()
            ]
            tables.append(pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields)))
    metadata = {
        "task": task.name,
        "settings": json.dumps(settings_as_dict(task)),
        "split_sha256": task.split.certificate.sha256,
        "export": export,
    }
    return pa.concat_tables(tables).replace_schema_metadata(metadata)


def as_array(column: Tensor) -> pa.Array:
    """A tensor as nested lists, without a copy of its numbers; the first dimension is that of the rows."""
    column = column.detach().cpu().contiguous()
    array = pa.array(column.flatten().numpy())
    for level in range(column.dim() - 1, 0, -1):
        num_lists = math.prod(column.shape[:level])
        offsets = np.arange(num_lists + 1, dtype=np.int32) * column.shape[level]
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def _describe_compositions(task: Task, split: SplitName, batch: Batch) -> dict[str, pa.Array]:
    """Number, modules and names of modules of the composition of each row; `test` has the numbers of `train`."""
    splits: list[SplitName] = [name for name in task.splits if name != "test"]
    earlier = splits[: splits.index("train" if split == "test" else split)]
    first = sum(len(task.split.compositions(name)) for name in earlier)
    compositions = task.split.compositions(split)
    names = {module: task.describe((module,)) for module in sorted(set().union(*compositions))}
    rows = batch.composition.tolist()
    named = [[names[module] for module in composition] for composition in compositions]
    return {
        "composition": pa.array([first + row for row in rows], pa.int32()),
        "modules": pa.array([list(compositions[row]) for row in rows], pa.list_(pa.int32())),
        "module_names": pa.array([named[row] for row in rows], pa.list_(pa.string())),
    }
