"""Named experiments: one file a paper, each a function from a scale to a list of runs, with the paper's figures."""

from __future__ import annotations

from collections.abc import Callable

from recombine.errors import check_choice
from recombine.recipes import attention_as_hypernetwork, in_context, length_generalization, scale, scale_grids
from recombine.recipes.experiment import SCALES, Experiment, Scale
from recombine.run import RunConfig

PAPERS = (attention_as_hypernetwork, in_context, scale, scale_grids, length_generalization)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for paper in PAPERS for each in paper.EXPERIMENTS}
DEFAULTS: dict[str, Callable[[Scale], dict[str, RunConfig]]] = {
    name: run for paper in PAPERS for name, run in paper.DEFAULTS.items()
}


def default_run(task: str, scale: Scale = "paper", model: str | None = None) -> RunConfig:
    """The run that `recombine train TASK --model KIND` starts from: the paper's sizes, or smaller ones."""
    check_choice("task", task, DEFAULTS)
    check_choice("scale", scale, SCALES)
    runs = DEFAULTS[task](scale)
    return runs[next(iter(runs)) if model is None else check_choice("model", model, runs)]
