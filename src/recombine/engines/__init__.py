"""Where runs are trained: processes of this machine, Ray or SLURM, behind one interface."""

from recombine.engines.base import Engine, Job, Outcome, count_cores, count_threads
from recombine.engines.choose import ENGINES, EngineFlags, split_cores
from recombine.engines.local import LocalEngine
from recombine.engines.many import raise_failure, train_all, train_runs

__all__ = [
    "ENGINES",
    "Engine",
    "EngineFlags",
    "Job",
    "LocalEngine",
    "Outcome",
    "count_cores",
    "count_threads",
    "raise_failure",
    "split_cores",
    "train_all",
    "train_runs",
]
