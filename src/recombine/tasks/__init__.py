"""Task families by name. A task is its frozen dataclass: `FuzzyLogic(num_examples=64).sample("ood", 0)`."""

from __future__ import annotations

from recombine.discovery import find_classes
from recombine.tasks.base import Batch, Ratio, SplitName, Task
from recombine.tasks.fuzzy_logic.task import FuzzyLogic
from recombine.tasks.grids.goal import GoalGrid
from recombine.tasks.grids.preference import PreferenceGrid
from recombine.tasks.language.task import Language
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.tasks.sraven.task import SRaven
from recombine.tasks.stream import Stream

TASKS: dict[str, type[Task]] = {task.name: task for task in find_classes(__name__, __path__, Task)}

__all__ = [
    "TASKS",
    "Batch",
    "FuzzyLogic",
    "GoalGrid",
    "Hyperteacher",
    "InContext",
    "Language",
    "PreferenceGrid",
    "Ratio",
    "SRaven",
    "SequenceTeacher",
    "SplitName",
    "Stream",
    "Task",
]
