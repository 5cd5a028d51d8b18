"""Attention as a Hypernetwork (arXiv 2406.05816): runs, claims and published numbers."""

from recombine.recipes.attention_as_hypernetwork.evidence import Dropout, SRavenPaper
from recombine.recipes.attention_as_hypernetwork.figures_of_paper import Features, Figure2B, Figure2C, Heads, HeldOut
from recombine.recipes.attention_as_hypernetwork.runs import FuzzyLogicComparison, SRavenComparison, TableA1

EXPERIMENTS = (
    FuzzyLogicComparison(),
    SRavenComparison(),
    TableA1(),
    Dropout(),
    SRavenPaper(),
    Figure2B(),
    Figure2C(),
    Heads(),
    Features(),
    HeldOut(),
)

__all__ = ["EXPERIMENTS"]
