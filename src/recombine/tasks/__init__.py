"""Task families by name. A task is its frozen dataclass: `FuzzyLogic(num_examples=64).sample("ood", 0)`."""

from __future__ import annotations

from recombine.foundation.outside_code import find_classes
from recombine.random import Stream
from recombine.tasks.base import Task
from recombine.tasks.batch import Batch, Ratio
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.grids.goal import GoalGrid
from recombine.tasks.grids.preference import PreferenceGrid
from recombine.tasks.language.task import Language
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.sampling import SplitName
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.tasks.sraven.task import SRaven

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
