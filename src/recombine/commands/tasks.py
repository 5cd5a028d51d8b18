"""recombine tasks: list the task families."""

from __future__ import annotations

from dataclasses import fields

from rich.table import Table

from recombine.cli import parse
from recombine.commands.console import Output
from recombine.tasks import TASKS


def run(argv: list[str]) -> None:
    output = parse(Output, argv, prog="tasks")
    table = Table("task", "what it asks", "splits", "settings and defaults")
    value = {}
    for name, task in TASKS.items():
        settings = {field.name: field.default for field in fields(task)}
        value[name] = {"summary": task.summary, "splits": list(task.splits), "settings": settings}
        listed = "\n".join(f"--{key.replace('_', '-')} {default}" for key, default in settings.items())
        table.add_row(name.replace("_", "-"), task.summary, "\n".join(task.splits), listed)
    output.show(value, table)
