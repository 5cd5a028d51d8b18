"""Frozen sequence models as teachers, to be followed to lengths that were never trained."""

from recombine.tasks.sequences.teacher import SequenceTeacher

__all__ = ["SequenceTeacher"]
