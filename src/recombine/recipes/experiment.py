"""What an experiment is: labelled runs at a scale, the figures a paper gives for them, and which score they compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from recombine.run import RunConfig
from recombine.store import RunDirectory
from recombine.tasks.base import Audit

Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


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
    conclude: Callable[[Mapping[str, RunDirectory]], Sequence[Audit]] | None = (
        None  # tables of its own, by label of run
    )
