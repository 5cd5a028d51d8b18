"""A folder that is a Hugging Face data set: Parquet shards, a card, and Croissant metadata.

    FOLDER/data/<split>-00000-of-00002.parquet
    FOLDER/README.md            the card; its header names the shards of each split
    FOLDER/croissant.json       Croissant 1.0 with the fields about responsible AI (RAI 1.0)

`datasets.load_dataset(FOLDER)` and `mlcroissant.Dataset(FOLDER/croissant.json)` read it without a network connection.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jinja2
import pyarrow as pa

from recombine.errors import InputError
from recombine.exchange.croissant import Shard, describe_dataset
from recombine.exchange.formats import encode_parquet
from recombine.exchange.identity import hash_export
from recombine.exchange.rows import describe_columns, make_rows
from recombine.files import write_whole
from recombine.settings import settings_as_dict
from recombine.tasks import SplitName, Task

ROWS_PER_SHARD = 50_000
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_hub_layout(
    task: Task,
    splits: Sequence[SplitName],
    num_instances: int,
    folder: Path,
    *,
    blind: bool = False,
    rows_per_shard: int = ROWS_PER_SHARD,
) -> list[Shard]:
    """Write the data set to a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{str(folder)!r} is not empty: expected a new or empty folder for the data set")
    shards: list[Shard] = []
    for split in splits:
        table = make_rows(task, [split], num_instances, blind=blind)
        count = -(-table.num_rows // rows_per_shard)
        for number in range(count):
            part = table.slice(number * rows_per_shard, rows_per_shard)
            shards.append(_write_shard(part, folder, split, f"data/{split}-{number:05}-of-{count:05}.parquet"))
    columns = {name: text for name, text in describe_columns(task).items() if name in table.column_names}
    described = describe_dataset(
        name=name_dataset(task),
        description=_describe(task),
        version=metadata.version("recombine"),
        shards=shards,
        schema=table.schema,
        columns=columns,
    )
    write_whole(folder / "croissant.json", (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode())
    write_whole(folder / "README.md", write_card(task, shards, columns).encode())
    return shards


def name_dataset(task: Task) -> str:
    return f"recombine-{task.name.replace('_', '-')}"


def _write_shard(table: pa.Table, folder: Path, split: SplitName, name: str) -> Shard:
    content = encode_parquet(table)
    write_whole(folder / name, content)
    digest = hashlib.sha256(content).hexdigest()
    return Shard(split=split, path=name, num_rows=table.num_rows, num_bytes=len(content), sha256=digest)


def _describe(task: Task) -> str:
    return (
        f"Instances of the Recombine task {task.name}: {task.summary.rstrip('.')}. Each instance comes from a composition of "
        "modules; the splits differ in which compositions they contain, to test compositional generalisation."
    )


def write_card(task: Task, shards: Sequence[Shard], columns: dict[str, str]) -> str:
    """The data set card."""
    loader = jinja2.PackageLoader("recombine.exchange")
    environment = jinja2.Environment(loader=loader, trim_blocks=True, autoescape=False)
    total = sum(shard.num_rows for shard in shards)
    return environment.get_template("card.md").render(
        title=task.name.replace("_", " "),
        command=task.name.replace("_", "-"),
        description=_describe(task),
        size=next((name for limit, name in SIZES if total < limit), "1M<n<10M"),
        splits=[
            {
                "name": split,
                "meaning": task.split_meaning(split),
                "num_rows": sum(shard.num_rows for shard in shards if shard.split == split),
                "num_compositions": len(task.split.compositions(split)),
            }
            for split in dict.fromkeys(shard.split for shard in shards)
        ],
        certificate=task.split.certificate,
        export=hash_export(task),
        columns=columns,
        settings=settings_as_dict(task),
    )
