"""Task families by name. A task is its frozen dataclass: `FuzzyLogic(num_examples=64).sample("ood", 0)`."""

from __future__ import annotations

from recombine.tasks.base import Batch, Ratio, SplitName, Stream, Task
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.goal_grid import GoalGrid
from recombine.tasks.hyperteacher import Hyperteacher
from recombine.tasks.in_context import InContext
from recombine.tasks.preference_grid import PreferenceGrid
from recombine.tasks.sequence_teacher import SequenceTeacher
from recombine.tasks.sraven import SRaven

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (FuzzyLogic, SRaven, InContext, Hyperteacher, PreferenceGrid, GoalGrid, SequenceTeacher)
}

__all__ = [
    "TASKS",
    "Batch",
    "FuzzyLogic",
    "GoalGrid",
    "Hyperteacher",
    "InContext",
    "PreferenceGrid",
    "Ratio",
    "SRaven",
    "SequenceTeacher",
    "SplitName",
    "Stream",
    "Task",
]
