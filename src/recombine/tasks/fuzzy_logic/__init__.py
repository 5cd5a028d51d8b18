"""Fuzzy logic: disjunctions of fuzzy conjunctions, inferred from examples in context."""

from recombine.tasks.fuzzy_logic.task import FuzzyLogic

__all__ = ["FuzzyLogic"]
