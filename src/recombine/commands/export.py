"""recombine export TASK -o FILE: write instances of a task to a file, each with the modules that generated it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recombine.commands.flags import TaskOptions, parse_task
from recombine.errors import check_choice, check_positive
from recombine.evaluate import evaluation_splits
from recombine.exchange import describe_columns, make_rows, write_table
from recombine.exchange.formats import check_suffix
from recombine.store import Json
from recombine.tables import Table
from recombine.tasks import SplitName, Task


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TaskOptions):
    """What to write and where."""

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("instances.parquet")
    """File to write. Its suffix is the format: .parquet, .csv, .jsonl or .npz."""
    splits: Annotated[tuple[SplitName, ...], tyro.conf.arg(aliases=["--split"])] = ()
    """Splits to write (default: all but train)."""
    num_instances: int = 1_000
    """Number of instances per split: the first ones of those that `train` and `evaluate` score."""
    blind: tyro.conf.FlagCreatePairsOff[bool] = False
    """Write inputs only, without targets and compositions, for predictions that nobody can look up."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ExportOptions, argv, verb="export")
    check_positive(num_instances=options.num_instances)
    check_suffix(options.out)
    splits = choose_splits(task, options.splits)
    table = make_rows(task, splits, options.num_instances, blind=options.blind)
    write_table(table, options.out)
    about = {name: text for name, text in describe_columns(task).items() if name in table.column_names}
    value: Json = {
        "file": str(options.out),
        "rows": table.num_rows,
        "bytes": options.out.stat().st_size,
        "splits": list(splits),
        "columns": about,
    } | {key.decode(): text.decode() for key, text in table.schema.metadata.items() if key != b"settings"}
    options.show(
        value,
        f"{options.out}: {table.num_rows} rows of {task.name} ({', '.join(splits)}), {value['bytes']:,} bytes",
        Table(title="columns", columns=("column", "contents"), rows=tuple(about.items())),
        f"Score predictions for them with: recombine score {argv[0]} FILE, with the task flags used here.",
    )


def choose_splits(task: Task, splits: tuple[SplitName, ...]) -> tuple[SplitName, ...]:
    """The splits that were asked for, each once; by default all but `train`."""
    for split in splits:
        check_choice("split", split, task.splits)
    return tuple(dict.fromkeys(splits)) or evaluation_splits(task)
