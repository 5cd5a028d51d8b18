"""A small sweep that several tests train."""

import time

from recombine.models.mlp import MLPConfig
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.config import RunConfig, TrainingConfig

BASE = RunConfig(
    task=Hyperteacher(num_modules=4, num_active=2, support="random"),
    model=MLPConfig(num_layers=1, hidden_dim=4),
    training=TrainingConfig(steps=10, batch_size=4),
)


FILE = """
from recombine import Hyperteacher, RunConfig, TrainingConfig, grid, over_seeds, search
from recombine.models import MLPConfig


def runs():
    base = RunConfig(
        task=Hyperteacher(num_modules=4, num_active=2, support="random"),
        model=MLPConfig(num_layers=1, hidden_dim=4),
        training=TrainingConfig(steps=10, batch_size=4),
    )
    return over_seeds(search(grid(base, hidden_dim=(4, 8)), learning_rate=(1e-3, 3e-3)), seeds=range(3))


def twice():
    return [*runs(), *runs()]


def diverging():
    return list(grid(next(iter(runs())).config, learning_rate=(1e-3, 1e30)))


def wrong():
    return grid(next(iter(runs())), flavour=(1, 2))


def none():
    return []


def numbers():
    return [1]


constant = 3
"""


def write_sweep(folder):
    """The file of the sweep, with several functions that list runs."""
    path = folder / "widths.py"
    path.write_text(FILE)
    return path


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
