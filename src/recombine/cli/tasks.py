"""recombine tasks: list the task families."""

from __future__ import annotations

from dataclasses import fields

from recombine.cli.main import parse
from recombine.cli.output import Output
from recombine.foundation.tables import Column, Table
from recombine.tasks.families import TASKS

EXAMPLES = (
    "recombine tasks",
    "recombine tasks --json",
)


def run(argv: list[str]) -> None:
    output = parse(Output, argv, prog="tasks", description="List the task families.")
    rows, value = [], {}
    for name, task in TASKS.items():
        settings = {field.name: field.default for field in fields(task)}
        value[name] = {"summary": task.summary, "splits": list(task.splits), "settings": settings}
        rows.append((name.replace("_", "-"), task.summary))
    columns = ("task", Column(name="what it asks", wrap=True))
    table = Table(
        title="Tasks",
        columns=columns,
        rows=tuple(rows),
        note="recombine train TASK --help lists the settings of a task.",
    )
    output.show(value, table)
