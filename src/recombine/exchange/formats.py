"""Tables in files: Parquet, CSV, JSON lines and NumPy archives, by the suffix of the name. Nothing here runs code.

Lists are JSON in a CSV file. A NumPy archive has one array per column; columns of lists of different lengths are left out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from recombine.archives import read_npz
from recombine.errors import InputError
from recombine.files import require_regular, write_whole

Suffix = Literal[".parquet", ".csv", ".jsonl", ".npz"]
SUFFIXES: tuple[str, ...] = get_args(Suffix)


def check_suffix(path: Path) -> str:
    """The suffix of a table file, or an error that lists the choices."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{str(path)!r} has the suffix {path.suffix!r}: expected one of {', '.join(SUFFIXES)}")
    return path.suffix.lower()


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table atomically."""
    encoders = {".parquet": encode_parquet, ".csv": _encode_csv, ".jsonl": encode_json_lines, ".npz": _encode_npz}
    write_whole(path, encoders[check_suffix(path)](table))


def encode_parquet(table: pa.Table) -> bytes:

    content = io.BytesIO()
    # Inputs rarely repeat, so dictionaries of them cost time and space; those of names and identities pay.
    repeated = [name for name in table.column_names if name in ("split", "module_names", "composition", "modules")]
    names = {"module_names": "module_names.list.element", "modules": "modules.list.element"}
    parquet.write_table(table, content, use_dictionary=[names.get(name, name) for name in repeated], compression="zstd")
    return content.getvalue()


def encode_json_lines(table: pa.Table) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _shorten(table).to_pylist()).encode()


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
    np.savez_compressed(
        content, allow_pickle=False, **{name: array for name, array in arrays.items() if array is not None}
    )
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
    except (OSError, ValueError, KeyError, RecursionError, NotImplementedError, MemoryError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"{str(path)!r} cannot be read ({reason}): expected a {suffix} file") from None


def _read_parquet(path: Path) -> dict[str, Any]:

    table = parquet.read_table(path)
    columns = {}
    for name in table.column_names:
        array = as_numpy(table.column(name))
        columns[name] = table.column(name).to_pylist() if array is None else array
    return columns


def _read_json_lines(path: Path) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"{path} line {number + 1} is not JSON: expected one object per line") from None
        if not isinstance(row, dict) or (columns and row.keys() != columns.keys()):
            known = ", ".join(columns) if columns else "an object"
            raise InputError(f"{path} line {number + 1} differs from the lines before it: expected the keys {known}")
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _read_csv(path: Path) -> dict[str, Any]:
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        rows = list(reader)
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise InputError(f"{path} row {number + 1} has {len(row)} cells: expected {len(header)}, as in the header")
    return {name: [_parse_cell(name, row[column]) for row in rows] for column, name in enumerate(header)}


def _parse_cell(name: str, cell: str) -> Any:
    """A cell of a CSV file: text for identities and responses, otherwise JSON."""
    if name in ("row_id", "response"):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell
