"""SRAVEN: symbolic Raven matrices, with a fast generator, an exact solver, counts and pictures."""

from recombine.tasks.sraven.task import SRaven

__all__ = ["SRaven"]
