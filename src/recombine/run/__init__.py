"""A run from its configuration to its result: train, resume, evaluate, load; or benchmark a module of your own."""

from recombine.run.benchmark import Benchmark, benchmark
from recombine.run.config import RunConfig, default_run
from recombine.run.device import resolve_device
from recombine.run.execute import train_run
from recombine.run.load import load_config, load_run
from recombine.run.progress import progress_bar
from recombine.run.records import describe_split

__all__ = [
    "Benchmark",
    "RunConfig",
    "benchmark",
    "default_run",
    "describe_split",
    "load_config",
    "load_run",
    "progress_bar",
    "resolve_device",
    "train_run",
]
