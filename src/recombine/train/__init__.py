"""Training.

Training is a pure function of a configuration: the initial parameters and batch i come from its seed, so a loop that
starts from a checkpoint ends with the same bits as one that was never stopped. `run/` puts the loop into a run directory.
"""

from recombine.train.clock import Clock, ClockState
from recombine.train.config import TRAINING_VERSION, TrainingConfig
from recombine.train.loop import Progress, RowWatcher, StepWatcher, Watcher, fit, intervals
from recombine.train.signals import StoppedError, StopRequest, heed_signals
from recombine.train.trainer import DivergedError, Trainer, load_model

__all__ = [
    "TRAINING_VERSION",
    "Clock",
    "ClockState",
    "DivergedError",
    "Progress",
    "RowWatcher",
    "StepWatcher",
    "StopRequest",
    "StoppedError",
    "Trainer",
    "TrainingConfig",
    "Watcher",
    "fit",
    "heed_signals",
    "intervals",
    "load_model",
]
