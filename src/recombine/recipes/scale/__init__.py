"""Scaling can lead to compositional generalization (arXiv 2507.07207): runs, tables and figures."""

from recombine.recipes.scale.runs import (
    Compositions,
    Decodability,
    Encodings,
    Models,
    Supports,
    Widths,
)

EXPERIMENTS = (Widths(), Compositions(), Supports(), Encodings(), Models(), Decodability())

__all__ = ["EXPERIMENTS"]
