"""Where runs are trained: on this machine, several at a time."""

from recombine.engines.local import train_runs

__all__ = ["train_runs"]
