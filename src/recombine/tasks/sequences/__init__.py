"""Frozen sequence models as teachers, to be imitated at lengths that were never trained."""

from recombine.tasks.sequences.teacher import SequenceTeacher

__all__ = ["SequenceTeacher"]
