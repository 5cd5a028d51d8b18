"""recombine tasks: list the task families."""

from __future__ import annotations

from dataclasses import dataclass, fields

from recombine.cli.main import Output, parse
from recombine.foundation.display import Column, Table
from recombine.tasks.families import TASKS


@dataclass(frozen=True, kw_only=True)
class TasksOptions(Output):
    """List the task families."""

    examples = ("recombine tasks", "recombine tasks --json")


def run(argv: list[str]) -> None:
    options = parse(TasksOptions, argv, prog="tasks")
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
    options.show(value, table)
