"""Task families by name."""

from pathlib import Path

from recombine.foundation.plugins import find_classes
from recombine.tasks.base import Task

TASKS: dict[str, type[Task]] = find_classes("recombine.tasks", [str(Path(__file__).parent)], Task, "name")
