"""recombine export TASK -o FILE: write instances of a task to a file, each with the modules that generated it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from recombine.cli.flags import TaskOptions, parse_task
from recombine.cli.main import Argument
from recombine.foundation.display import Table
from recombine.foundation.errors import check_choice, check_positive
from recombine.integrations.exchange.export import check_suffix, describe_columns, hash_export, make_rows, write_table
from recombine.integrations.exchange.text import write_text
from recombine.tasks.base import Task
from recombine.tasks.sampling import SplitName
from recombine.tasks.text import PARSERS
from recombine.training.schema import Json
from recombine.training.score import evaluation_splits

Format = Literal["table", "text"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TaskOptions):
    """What to write and where."""

    examples = (
        "recombine export sraven --split ood -o puzzles.parquet",
        "recombine export fuzzy-logic --scale tiny --num-instances 50000 -o rows.parquet",
    )

    out: Annotated[Path, Argument(alias="-o")] = Path("instances.parquet")
    """File to write. Its suffix is the format: .parquet, .csv, .jsonl or .npz. A folder for text."""
    format: Format = "table"
    """A table of numbers, or prompts for language models with a task for lm-evaluation-harness."""
    splits: Annotated[tuple[SplitName, ...], Argument(metavar="SPLIT", alias="--split")] = ()
    """Splits to write, such as test or ood (default: all but train)."""
    num_instances: int = 1_000
    """Number of instances per split: the first ones of those that `train` and `evaluate` score."""
    blind: bool = False
    """Write inputs only, without targets and compositions, for predictions that nobody can look up."""
    worked_examples: int = 0
    """Number of worked examples per prompt, from training compositions (--format text)."""
    reasoning: bool = False
    """Ask the model to think before it answers (--format text)."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ExportOptions, argv, verb="export")
    check_positive(num_instances=options.num_instances)
    for split in options.splits:
        check_choice("split", split, task.splits)
    splits = tuple(dict.fromkeys(options.splits)) or evaluation_splits(task)
    if options.format == "text":
        export_text(task, splits, options, named=argv[0])
    else:
        export_table(task, splits, options, named=argv[0])


def export_text(task: Task, splits: tuple[SplitName, ...], options: ExportOptions, *, named: str) -> None:
    """Prompts for language models."""
    files = write_text(
        task,
        splits,
        options.num_instances,
        options.out,
        num_examples=options.worked_examples,
        reasoning=options.reasoning,
        blind=options.blind,
    )
    form = task.text_form()
    value: Json = {
        "folder": str(options.out),
        "files": [str(path) for path in files],
        "rows": options.num_instances * len(splits),
        "splits": list(splits),
        "parsers": {parser: form.expression(parser) for parser in PARSERS},
        "split_sha256": form.task.split.certificate.sha256,
        "export": hash_export(form.task),
    }
    options.show(
        value,
        f"{options.out}: {value['rows']} prompts of {named} ({', '.join(splits)}) in {len(files)} files",
        f"Score answers to them with: recombine score {named} FILE, with the task flags used here.",
    )


def export_table(task: Task, splits: tuple[SplitName, ...], options: ExportOptions, *, named: str) -> None:
    """Numbers for any other program."""
    check_suffix(options.out)
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
        f"{options.out}: {table.num_rows} rows of {named} ({', '.join(splits)}), {value['bytes']:,} bytes",
        Table(title="columns", columns=("column", "contents"), rows=tuple(about.items())),
        f"Score predictions for them with: recombine score {named} FILE, with the task flags used here.",
    )
