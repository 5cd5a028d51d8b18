"""The experiments of four papers on compositional generalisation, made with the public API of `recombine`."""

from __future__ import annotations

from functools import cache

from recombine.foundation.outside_code import find_classes
from recombine.sweeps.experiment import Experiment

PAPERS = ("hypernetwork", "in_context", "length", "scale")

EXPERIMENTS: dict[str, Experiment]


@cache
def _find_experiments() -> dict[str, Experiment]:
    classes = [
        experiment
        for paper in PAPERS
        for experiment in find_classes(f"{__name__}.{paper}", [f"{__path__[0]}/{paper}"], Experiment)
        if "name" in vars(experiment)
    ]
    return {experiment.name: experiment() for experiment in classes}


def __getattr__(name: str) -> object:
    if name == "EXPERIMENTS":
        return _find_experiments()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
