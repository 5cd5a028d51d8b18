"""What an experiment is: labelled runs at a scale, the figures a paper gives for them, and which score they compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from recombine.run import RunConfig
from recombine.store import RunDirectory
from recombine.tasks.base import Audit, Scale

SEED = " / seed "  # between the label of what is compared and the number of its seed
Runs = Mapping[str, RunDirectory]  # finished, by label
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Runs to compare, by label, and the published value of `metric` on `split` for each label."""

    name: str
    question: str
    runs: Callable[[Scale], dict[str, RunConfig]]
    split: str
    metric: str
    published: dict[str, tuple[float, float]] = field(default_factory=dict)  # label -> (value, standard error)
    published_scale: Scale | None = None  # the only scale whose task is the paper's, if not all are
    # in place of the comparison of one score; what needs a network runs on the device that is named
    tables: Callable[[Runs, str], list[Audit]] | None = None


def over_seeds(runs: Mapping[str, RunConfig], seeds: Iterable[int]) -> dict[str, RunConfig]:
    """Every run once a seed, which is that of its task, its split and its first parameters."""
    return {
        f"{label}{SEED}{seed}": replace(run, task=replace(run.task, seed=seed))
        for label, run in runs.items()
        for seed in seeds
    }


def group_seeds(runs: Mapping[str, Value]) -> dict[str, list[Value]]:
    """The inverse: what there is of every seed, by label without the seed."""
    groups: dict[str, list[Value]] = {}
    for label, value in runs.items():
        groups.setdefault(label.partition(SEED)[0], []).append(value)
    return groups
