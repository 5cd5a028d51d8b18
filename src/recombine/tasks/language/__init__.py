"""Language: text from files, from data sets or from the standard library, with a grammar and recall mixed into it."""

from recombine.tasks.language.task import Language

__all__ = ["Language"]
