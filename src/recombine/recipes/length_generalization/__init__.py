"""On Provable Length and Compositional Generalization (arXiv 2402.04875): runs, tables and figures."""

from recombine.recipes.length_generalization.runs import (
    Corners,
    Diversity,
    HigherCapacity,
    LimitedCapacity,
    Realisability,
)

EXPERIMENTS = (LimitedCapacity(), HigherCapacity(), Corners(), Diversity(), Realisability())

__all__ = ["EXPERIMENTS"]
