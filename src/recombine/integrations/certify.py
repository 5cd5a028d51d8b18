"""The certificate of a data set that others made: does its split test recombination?

A *composition* is a row's values in the columns that the user names, such as (shape, colour). With the compositions of the
training part and of each held-out part, the certificate says

- coverage: which values of held-out compositions are never trained;
- connectivity: how many groups of values there are that training never combines with one another;
- overlap: compositions, and whole rows, that are in training and held out, exactly and after folding case and spaces;
- distance: how many values of a held-out composition must change to reach a trained one (its *level*), and how many of
  its pairs of values occur together in training;
- balance: how unequal the numbers of rows per training composition are;
- the SHA-256 of the split, which does not depend on the order of the rows.

A held-out composition is a *valid* test of recombination if it is not trained, all its values are, and training connects them.

Tables are read in batches of rows: memory grows with the number of different compositions, and by 16 bytes per row for the
search of rows that occur twice. Rows are compared by 64-bit hashes: of n rows, about n² / 2⁶⁵ pairs agree by chance.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet
from pyarrow import dataset as arrow_dataset

from recombine.compositions import order_by_hash
from recombine.foundation.errors import InputError, check_choice, check_positive

Values = tuple[str, ...]  # the values of a composition, in the order of the columns
Batches = Iterator[tuple[str | None, pa.Table]]  # the name of the file's split, if it has one, and rows

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".jsonl": "json", ".arrow": "arrow"}
TRAINING_NAMES = ("train", "training")
MAX_COLUMNS = 12  # distances go through all subsets of the columns
MAX_COMPOSITIONS = 2_000_000
ROWS_PER_BATCH = 1 << 19
MAX_EXAMPLES = 3  # examples in a sentence
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What one held-out part tests."""

    name: str
    num_rows: int
    num_compositions: int
    num_trained: int  # compositions that are trained too, after folding case and spaces
    num_trained_exactly: int
    untrained_values: dict[str, dict[str, int]]  # column -> value -> number of compositions with it
    num_uncovered: int  # untrained compositions with a value that is never trained
    num_unconnected: int  # covered compositions whose values training never connects
    levels: dict[int, int]  # number of values to change to reach a trained composition -> number of compositions
    trained_pairs: float | None  # share of the pairs of values of untrained compositions that are trained together
    num_shared_rows: int | None  # rows that are training rows too, after folding; None where rows were not compared
    num_shared_rows_exactly: int | None

    @property
    def num_valid(self) -> int:
        """Compositions that test recombination."""
        return self.num_compositions - self.num_trained - self.num_uncovered - self.num_unconnected


@dataclass(frozen=True, kw_only=True)
class DataCertificate:
    """The certificate of a split of a table; `verdict` puts it into words."""

    columns: tuple[str, ...]
    counts: dict[str, dict[Values, int]] = field(repr=False)  # part of the split -> composition -> number of rows
    train: str
    held_out: tuple[HeldOut, ...]
    groups: tuple[tuple[str, ...], ...] = field(repr=False)  # values that training connects, as `column=value`
    sha256: str

    @cached_property
    def num_rows(self) -> int:
        return sum(self.counts[self.train].values())

    @property
    def imbalance(self) -> float:
        """Rows of the most frequent training composition per row of the least frequent one."""
        numbers = self.counts[self.train].values()
        return max(numbers) / min(numbers)

    @property
    def passes(self) -> bool:
        """Whether every held-out composition tests recombination."""
        return all(part.num_valid == part.num_compositions and not part.num_shared_rows for part in self.held_out)

    @property
    def verdict(self) -> str:
        """What the split tests, in words: one line per held-out part."""
        return "\n".join(self._judge(part) for part in self.held_out)

    def _judge(self, part: HeldOut) -> str:
        reasons = []
        if part.num_uncovered:
            named = [
                f"{count} held-out compositions contain `{column}={value}`, which is never trained"
                for column, values in part.untrained_values.items()
                for value, count in values.items()
            ]
            more = f" (and {len(named) - MAX_EXAMPLES} more values)" if len(named) > MAX_EXAMPLES else ""
            reasons.append("; ".join(named[:MAX_EXAMPLES]) + more)
        if part.num_trained:
            folded = part.num_trained - part.num_trained_exactly
            exact = f", {folded} of them in other case or spacing" if folded else ""
            reasons.append(f"{part.num_trained} of {part.num_compositions} compositions are trained too{exact}")
        if part.num_unconnected:
            reasons.append(
                f"{part.num_unconnected} compositions combine values of different groups: training falls into "
                f"{len(self.groups)} groups of values that never occur together"
            )
        if part.num_shared_rows:
            reasons.append(f"{part.num_shared_rows:,} of {part.num_rows:,} rows are training rows too")
        if part.num_valid == part.num_compositions:
            verdict = "tests recombination"
        elif part.num_valid:
            verdict = f"tests recombination in {part.num_valid} of {part.num_compositions} compositions only"
        else:
            verdict = "does not test recombination"
        return f"{part.name}: this split {verdict}" + (f": {'; '.join(reasons)}." if reasons else ".")

    def as_dict(self) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "train": {
                "name": self.train,
                "num_rows": self.num_rows,
                "num_compositions": len(self.counts[self.train]),
                "imbalance": self.imbalance,
                "groups": [list(group) for group in self.groups],
            },
            "held_out": [
                vars(part)
                | {"levels": {str(n): count for n, count in part.levels.items()}, "num_valid": part.num_valid}
                for part in self.held_out
            ],
            "passes": self.passes,
            "verdict": self.verdict,
            "sha256": self.sha256,
        }


def certify(
    table: object,
    *,
    composition: Sequence[str],
    split: str = "split",
    train: str | None = None,
    compare_rows: bool = True,
) -> DataCertificate:
    """The certificate of a table's split.

    `table` is a file (CSV, Parquet, JSON lines, Arrow), a folder of such files, a Hugging Face data set or its folder on disk,
    a pandas or pyarrow table, or a dictionary of tables by split. A row's split is its value in the column `split`; without
    such a column it is the name of its file or folder, such as `train.csv`. All parts but `train` are held out.
    """
    columns = tuple(composition)
    if not 1 <= len(set(columns)) == len(columns) <= MAX_COLUMNS:
        raise InputError(f"composition is {list(columns)}: expected 1 to {MAX_COLUMNS} different columns")
    counts: dict[str, Counter[Values]] = defaultdict(Counter)
    hashes: dict[str, list[NDArray[np.uint64]]] = defaultdict(list)
    for part, rows in _read_parts(table, columns, split):
        found, positions = _find_compositions(rows, columns)
        counts[part].update(dict(zip(found, np.bincount(positions).tolist(), strict=True)))
        if compare_rows:
            hashes[part].append(hash_rows(rows.drop_columns([split]) if split in rows.column_names else rows))
        if sum(map(len, counts.values())) > MAX_COMPOSITIONS:
            raise InputError(
                f"columns {', '.join(columns)} have more than {MAX_COMPOSITIONS:,} compositions: expected columns with few values"
            )
    if not counts:
        raise InputError("the table has no rows: expected at least one")
    name = _find_training_part(list(counts), train, split)
    if len(counts) == 1:
        raise InputError(f"column {split!r} has the value {name!r} only: expected training and held-out rows")
    return _certify_counts(columns, {part: dict(number) for part, number in counts.items()}, name, hashes)


def _certify_counts(
    columns: tuple[str, ...],
    counts: dict[str, dict[Values, int]],
    train: str,
    hashes: Mapping[str, Sequence[NDArray[np.uint64]]],
) -> DataCertificate:
    trained = set(counts[train])
    groups = Groups(trained).number()
    rows = {part: np.concatenate(found, axis=1) for part, found in hashes.items()}
    held_out = tuple(
        _judge_part(part, columns, counts[part], trained, groups, rows.get(part), rows.get(train))
        for part in sorted(counts)
        if part != train
    )
    named: dict[int, list[str]] = defaultdict(list)
    for (position, value), group in sorted(groups.items()):
        named[group].append(f"{columns[position]}={value}")
    canonical = sorted([part, *values] for part, found in counts.items() for values in found)
    return DataCertificate(
        columns=columns,
        counts=counts,
        train=train,
        held_out=held_out,
        groups=tuple(tuple(names) for names in named.values()),
        sha256=hashlib.sha256(json.dumps(canonical, ensure_ascii=False).encode()).hexdigest(),
    )


def _judge_part(
    part: str,
    columns: tuple[str, ...],
    counts: Mapping[Values, int],
    trained: set[Values],
    groups: Mapping[tuple[int, str], int],
    rows: NDArray[np.uint64] | None,
    training_rows: NDArray[np.uint64] | None,
) -> HeldOut:
    folded = {fold_case(values) for values in trained}
    untrained = [values for values in counts if fold_case(values) not in folded]
    unknown: Counter[tuple[int, str]] = Counter()
    num_unconnected = num_uncovered = 0
    for values in untrained:
        missing = [value for value in enumerate(values) if value not in groups]
        unknown.update(missing)
        num_uncovered += bool(missing)
        num_unconnected += not missing and len({groups[value] for value in enumerate(values)}) > 1
    untrained_values: dict[str, dict[str, int]] = defaultdict(dict)
    for (position, value), count in unknown.most_common():
        untrained_values[columns[position]][value] = count
    shared: list[int | None] = [None, None]
    if rows is not None and training_rows is not None:
        shared = [int(np.isin(*pair).sum()) for pair in zip(rows, training_rows, strict=True)]
    return HeldOut(
        name=part,
        num_rows=sum(counts.values()),
        num_compositions=len(counts),
        num_trained=len(counts) - len(untrained),
        num_trained_exactly=len(trained & counts.keys()),
        untrained_values=dict(untrained_values),
        num_uncovered=num_uncovered,
        num_unconnected=num_unconnected,
        levels=count_levels(untrained, trained),
        trained_pairs=share_of_pairs(untrained, trained),
        num_shared_rows_exactly=shared[0],
        num_shared_rows=shared[1],
    )


def fold_case(values: Values) -> Values:
    """Values without differences of case and spacing."""
    return tuple(" ".join(value.lower().split()) for value in values)


class Groups:
    """Values that compositions connect: a forest of values (column, value) with a root for each group."""

    def __init__(self, compositions: Iterable[Values] = ()) -> None:
        self.parent: dict[tuple[int, str], tuple[int, str]] = {}
        for values in compositions:
            self.add(values)

    def add(self, values: Values) -> bool:
        """Join the groups of a composition's values; returns whether it added a value or a connection."""
        new = any(value not in self.parent for value in enumerate(values))
        roots = {self.root(value) for value in enumerate(values)}
        self.parent |= dict.fromkeys(roots, min(roots))
        return new or len(roots) > 1

    def root(self, value: tuple[int, str]) -> tuple[int, str]:
        """The value that stands for the group of `value`."""
        while self.parent.setdefault(value, value) != value:
            self.parent[value] = self.parent[self.parent[value]]
            value = self.parent[value]
        return value

    def number(self) -> dict[tuple[int, str], int]:
        """The group of each value, numbered from 0."""
        numbers: dict[tuple[int, str], int] = {}
        return {value: numbers.setdefault(self.root(value), len(numbers)) for value in sorted(self.parent)}


def count_levels(untrained: Iterable[Values], trained: Iterable[Values]) -> dict[int, int]:
    """The numbers of compositions by how many of their values must change to reach a trained one."""
    left, levels = set(untrained), {}
    width = len(next(iter(left), ()))
    for level in range(1, width + 1):
        if not left:
            break
        reached: set[Values] = set()
        for kept in itertools.combinations(range(width), width - level):
            known = {tuple(values[i] for i in kept) for values in trained}
            reached |= {values for values in left if tuple(values[i] for i in kept) in known}
        if reached:
            levels[level] = len(reached)
        left -= reached
    return levels


def share_of_pairs(untrained: Sequence[Values], trained: Iterable[Values]) -> float | None:
    """The share of the pairs of values of untrained compositions that some training composition has."""

    def pairs(values: Values) -> Iterator[tuple[tuple[int, str], ...]]:
        return itertools.combinations(enumerate(values), 2)

    known = {pair for values in trained for pair in pairs(values)}
    wanted = [pair in known for values in untrained for pair in pairs(values)]
    return sum(wanted) / len(wanted) if wanted else None


def _find_training_part(parts: Sequence[str], train: str | None, split: str) -> str:
    if train is not None:
        return check_choice(f"training part of column {split!r}", train, sorted(parts))
    found = [part for part in parts if part.lower() in TRAINING_NAMES]
    if len(found) != 1:
        raise InputError(
            f"column {split!r} has the values {', '.join(sorted(parts)[:8])}: expected one of them to be 'train'; name the "
            "training part with --train"
        )
    return found[0]


# ---------------------------------------------------------------- new splits


def make_splits(
    compositions: Iterable[Values], *, held_out: float, seed: int = 0, num_folds: int = 1
) -> list[set[Values]]:
    """The held-out compositions of each of `num_folds` splits of a table's compositions.

    The order is that of SHA-256 of (seed, composition). In every split training covers all values and connects them as far
    as all compositions together do: compositions that are needed for it stay in training. One split holds out a fraction of
    the compositions; several hold out each composition once, except those that are needed in every split.
    """
    if not 0 < held_out < 1:
        raise InputError(f"held-out fraction is {held_out!r}: expected a number strictly between 0 and 1")
    check_positive(num_folds=num_folds)
    listed = sorted(set(compositions))
    ordered = [listed[number] for (number,) in order_by_hash(((i,) for i in range(len(listed))), seed=seed)]
    if num_folds == 1:
        wanted = int(held_out * len(ordered) + 1e-9)
        candidates = _drop_needed([], ordered)
        if len(candidates) < wanted:
            raise InputError(
                f"held-out fraction is {held_out} of {len(ordered)} compositions: expected at most "
                f"{len(candidates) / len(ordered):.3g}; the other compositions are needed to train and connect all values"
            )
        return [set(candidates[:wanted])]
    folds = [ordered[number::num_folds] for number in range(num_folds)]
    return [
        set(_drop_needed([values for other in folds if other is not fold for values in other], fold)) for fold in folds
    ]


def _drop_needed(training: Sequence[Values], candidates: Sequence[Values]) -> list[Values]:
    """The candidates that training does not need, which then has all their values and connections."""
    groups = Groups(training)
    return [values for values in reversed(candidates) if not groups.add(values)][::-1]


def write_splits(
    table: object, columns: Sequence[str], folds: Sequence[set[Values]], path: Path, *, split: str = "split"
) -> None:
    """Write a table's rows with a column for their split: `train` or `ood`, or with several folds the fold that holds them out."""
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(f"{str(path)!r} has the suffix {path.suffix!r}: expected .parquet or .csv")
    name = split if len(folds) == 1 else "fold"
    labels = {values: "ood" if len(folds) == 1 else str(number) for number, fold in enumerate(folds) for values in fold}
    unfinished = path.with_name(f".{path.name}.unfinished")
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for _, rows in _open(table):
            found, positions = _find_compositions(rows, columns)
            column = pa.array([labels.get(values, "train") for values in found]).take(pa.array(positions))
            kept = rows.drop_columns([name]) if name in rows.column_names else rows
            labelled = kept.append_column(name, column)
            if writer is None:
                kind = parquet.ParquetWriter if path.suffix.lower() == ".parquet" else csv.CSVWriter
                writer = stack.enter_context(kind(str(unfinished), labelled.schema))
            writer.write_table(labelled)
    unfinished.replace(path)


# ---------------------------------------------------------------- reading


def _read_parts(table: object, columns: Sequence[str], split: str) -> Iterator[tuple[str, pa.Table]]:
    """Rows by the part of the split that they belong to."""
    for name, rows in _open(table):
        missing = [column for column in columns if column not in rows.column_names]
        if missing:
            raise InputError(f"the table has no column {missing[0]!r}: expected one of {', '.join(rows.column_names)}")
        if split not in rows.column_names:
            if name is None:
                raise InputError(
                    f"the table has no column {split!r}: expected the column that says what is trained and what is held out, "
                    f"one of {', '.join(rows.column_names)}"
                )
            yield name, rows
            continue
        labels = _as_text(rows[split])
        for label in pc.unique(labels).to_pylist():
            yield label, rows.filter(pc.equal(labels, label))


def _open(table: object) -> Batches:
    if isinstance(table, str | Path):
        yield from _open_path(Path(table))
    elif isinstance(table, Mapping):
        for name, rows in table.items():
            yield from ((str(name), batch) for _, batch in _open(rows))
    elif isinstance(table, pa.Table):
        for start in range(0, len(table), ROWS_PER_BATCH):
            yield None, table.slice(start, ROWS_PER_BATCH)
    elif hasattr(table, "with_format"):  # a Hugging Face data set
        for batch in cast(Any, table).with_format("arrow").iter(batch_size=ROWS_PER_BATCH):
            yield None, batch
    elif hasattr(table, "columns") and hasattr(table, "to_dict"):
        yield from _open(pa.Table.from_pandas(table, preserve_index=False))
    else:
        raise InputError(
            f"the table is a {type(table).__name__}: expected a file, a folder, or a pandas or pyarrow table"
        )


def _open_path(path: Path) -> Batches:
    if not path.exists():
        raise InputError(f"there is no {str(path)!r}: expected a table or a folder of tables")
    if not path.is_dir():
        yield from _open_file(path, None)
        return
    files = sorted(
        file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )
    if not files:
        raise InputError(f"{str(path)!r} has no tables: expected files that end in {', '.join(SUFFIXES)}")
    for file in files:
        yield from _open_file(file, file.stem if file.parent == path else file.relative_to(path).parts[0])


def _open_file(path: Path, name: str | None) -> Batches:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{str(path)!r} has the suffix {path.suffix!r}: expected one of {', '.join(SUFFIXES)}")
    try:
        if suffix == ".arrow":  # as Hugging Face's datasets saves them
            for batch in pa.ipc.open_stream(pa.memory_map(str(path))):
                yield name, pa.Table.from_batches([batch])
            return
        source = arrow_dataset.dataset(str(path), format=SUFFIXES[suffix])
        for batch in source.to_batches(batch_size=ROWS_PER_BATCH):
            if batch.num_rows:
                yield name, pa.Table.from_batches([batch])
    except pa.ArrowException as error:
        raise InputError(f"{str(path)!r} is not a readable table: {str(error).splitlines()[0]}") from None


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    """A column's values as text; a missing value is an empty one. Lists and structures are written as JSON."""
    if pa.types.is_nested(column.type):
        texts = [json.dumps(value, ensure_ascii=False, default=str) for value in column.to_pylist()]
        return pa.array(texts, pa.large_string())
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.large_string())
    texts = pc.fill_null(column.cast(pa.large_string()), "").combine_chunks()
    return pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts


def _find_compositions(rows: pa.Table, columns: Sequence[str]) -> tuple[list[Values], NDArray[np.int64]]:
    """The different compositions of some rows, and which of them each row has."""
    encoded = [_as_text(rows[column]).dictionary_encode() for column in columns]
    names = [part.dictionary.to_pylist() for part in encoded]
    sizes = tuple(map(len, names))
    keys = np.ravel_multi_index([part.indices.to_numpy() for part in encoded], sizes)
    found, positions = np.unique(keys, return_inverse=True)
    indices = zip(*(part.tolist() for part in np.unravel_index(found, sizes)), strict=True)
    return [tuple(name[i] for name, i in zip(names, row, strict=True)) for row in indices], positions


def hash_rows(rows: pa.Table) -> NDArray[np.uint64]:
    """Two 64-bit hashes per row: of its values, and of its values without differences of case and spacing."""
    with np.errstate(over="ignore"):
        exact, folded = np.zeros((2, len(rows)), np.uint64)
        for name in sorted(rows.column_names):
            texts = _as_text(rows[name])
            plain = pc.utf8_lower(pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, r"\s+", " ")))
            for total, column in ((exact, texts), (folded, plain)):
                total *= HASH_BASE
                total += _hash_texts(column)
        return np.stack([exact, folded])


def _hash_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """A polynomial of each text's bytes modulo 2⁶⁴, mixed as in SplitMix64."""
    _, offsets, data = texts.buffers()
    begin = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(begin)
    raw = np.frombuffer(data, np.uint8)[begin[0] : begin[-1]] if data is not None else np.zeros(0, np.uint8)
    starts = begin[:-1] - begin[0]
    sums = np.zeros(len(texts), np.uint64)
    filled = lengths > 0
    if filled.any():
        powers = np.cumprod(np.full(int(lengths.max()), HASH_BASE | np.uint64(1), np.uint64))
        position = np.arange(len(raw)) - np.repeat(starts, lengths)
        sums[filled] = np.add.reduceat((raw.astype(np.uint64) + np.uint64(1)) * powers[position], starts[filled])
    sums ^= sums >> np.uint64(30)
    sums *= np.uint64(0xBF58476D1CE4E5B9)
    sums ^= sums >> np.uint64(27)
    sums *= np.uint64(0x94D049BB133111EB)
    return sums ^ (sums >> np.uint64(31))
