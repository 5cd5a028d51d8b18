"""Grid worlds with exact experts: follow a mixture of preferences, or an instruction with four parts."""

from recombine.tasks.grids.goal import GoalGrid
from recombine.tasks.grids.preference import PreferenceGrid

__all__ = ["GoalGrid", "PreferenceGrid"]
