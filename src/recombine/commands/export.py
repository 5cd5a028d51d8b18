"""recombine export TASK -o FILE: write instances to a Parquet file, each with the modules that generated it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recombine.commands.flags import TaskOptions, parse_task
from recombine.errors import check_positive
from recombine.files import write_whole
from recombine.tasks import SplitName, Task
from recombine.tasks.evaluation import evaluation_batches

EXAMPLES = (
    "recombine export sraven --split ood -o puzzles.parquet",
    "recombine export fuzzy-logic --scale tiny --num-instances 50000 -o rows.parquet",
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TaskOptions):
    """What to write and where."""

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("instances.parquet")
    """File to write."""
    split: SplitName = "ood"
    """Split to write."""
    num_instances: int = 1_000
    """Number of instances."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ExportOptions, argv, verb="export")
    check_positive(num_instances=options.num_instances)
    export(task, options.split, options.num_instances, options.out)
    value = {"file": str(options.out), "rows": options.num_instances, "bytes": options.out.stat().st_size}
    options.show(
        value, f"{options.out}: {options.num_instances} rows of {task.name} {options.split}, {value['bytes']} bytes"
    )


def export(task: Task, split: SplitName, num_instances: int, path: Path) -> None:
    """Write the first instances of a split. The file's metadata hold the task's settings and the split's hash."""
    import pyarrow as pa
    from pyarrow import parquet

    tables = []
    for batch in evaluation_batches(task, split, num_instances, "cpu"):
        tables.append(pa.table({name: column.tolist() for name, column in task.columns(batch).items()}))
    about = {
        "task": task.name,
        "settings": json.dumps(asdict(task)),
        "split": split,
        "split_sha256": task.split.certificate.sha256,
    }
    table = pa.concat_tables(tables).replace_schema_metadata(about)
    content = io.BytesIO()
    parquet.write_table(table, content)
    write_whole(path, content.getvalue())
