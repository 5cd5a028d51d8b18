"""Attention as a Hypernetwork (arXiv 2406.05816): runs and published figures."""

from recombine.recipes.attention_as_hypernetwork.runs import EXPERIMENTS

__all__ = ["EXPERIMENTS"]
