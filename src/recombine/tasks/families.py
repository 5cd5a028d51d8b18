"""Task families by name."""

from pathlib import Path

from recombine.tasks.base import Task, find_classes

TASKS: dict[str, type[Task]] = find_classes("recombine.tasks", [str(Path(__file__).parent)], Task, "name")
