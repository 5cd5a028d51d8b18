"""Named experiments, one folder per paper: runs, tables, figures and published numbers."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from recombine.discovery import find_classes
from recombine.errors import InputError, check_choice
from recombine.outside_code import load_object
from recombine.recipes.experiment import Experiment, Finished, FinishedRun, Group, Published, Record

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment()
    for experiment in find_classes(__name__, __path__, Experiment)
    if "name" in vars(experiment)
}


def find_experiment(name: str) -> Experiment:
    """An experiment by name, from an installed package (entry-point group `recombine.experiments`), or `FILE.py:NAME`."""
    if ":" in name:
        return check_experiment(load_object(name), name)
    installed = {entry.name: entry for entry in metadata.entry_points(group="recombine.experiments")}
    check_choice("experiment", name, (*EXPERIMENTS, *installed, "FILE.py:EXPERIMENT"))
    return EXPERIMENTS[name] if name in EXPERIMENTS else check_experiment(installed[name].load(), name)


def check_experiment(experiment: Any, name: str) -> Experiment:
    """Accept an experiment or its class; refuse everything else."""
    if isinstance(experiment, type) and issubclass(experiment, Experiment):
        try:
            experiment = experiment()
        except TypeError as error:
            raise InputError(f"experiment {name!r} cannot be created ({error}): expected all its methods") from None
    if not isinstance(experiment, Experiment):
        raise InputError(f"{name!r} is not an experiment: expected a subclass of recombine.recipes.Experiment")
    missing = [attribute for attribute in ("name", "question", "metric") if not hasattr(experiment, attribute)]
    if missing:
        raise InputError(f"experiment {name!r} lacks {', '.join(missing)}: expected class attributes with these names")
    return experiment


__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Finished",
    "FinishedRun",
    "Group",
    "Published",
    "Record",
    "find_experiment",
]
