"""recombine export TASK -o FILE: instances as Parquet, each row with the latents that made it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recombine.cli import parse_task
from recombine.commands.console import Output
from recombine.errors import check_positive
from recombine.evaluate import evaluation_batches
from recombine.files import write_whole
from recombine.tasks import SplitName, Task


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Output):
    """What to write, and where."""

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("instances.parquet")
    """The file to write."""
    split: SplitName = "ood"
    """Which split to write."""
    num_instances: int = 1_000
    """How many rows."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ExportOptions, argv, verb="export")
    check_positive(num_instances=options.num_instances)
    export(task, options.split, options.num_instances, options.out)
    value = {"file": str(options.out), "rows": options.num_instances, "bytes": options.out.stat().st_size}
    options.show(
        value, f"{options.out}: {options.num_instances} rows of {task.name} {options.split}, {value['bytes']} bytes"
    )


def export(task: Task, split: SplitName, num_instances: int, path: Path) -> None:
    """Write the first instances of a split; the task's setting and the split's hash go into the file's metadata."""
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
