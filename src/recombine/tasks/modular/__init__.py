"""Tasks over the modules of a frozen network: `hyperteacher` names the task, `in_context` shows examples of it."""

from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.modular.in_context import InContext

__all__ = ["Hyperteacher", "InContext"]
