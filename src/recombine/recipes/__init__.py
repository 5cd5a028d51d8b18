"""Named experiments, one folder per paper: runs, tables, figures and published numbers."""

from __future__ import annotations

from recombine.recipes import attention_as_hypernetwork, in_context, length_generalization, scale
from recombine.recipes.experiment import Experiment

PAPERS = (attention_as_hypernetwork, in_context, scale, length_generalization)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for paper in PAPERS for experiment in paper.EXPERIMENTS
}

__all__ = ["EXPERIMENTS", "Experiment"]
