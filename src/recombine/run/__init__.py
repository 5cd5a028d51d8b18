"""A run from its configuration to its result: train, resume, evaluate, load; or benchmark a module of your own."""

from recombine.run.benchmark import Benchmark, benchmark
from recombine.run.config import RunConfig, default_run
from recombine.run.execute import describe_split, resolve_device, train_run
from recombine.run.load import load_config, load_run
from recombine.run.progress import progress_bar

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
