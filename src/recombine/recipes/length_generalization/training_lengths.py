"""Longer training sequences: students of higher capacity follow their teacher further, once training goes far enough.

The paper proves that general classes of functions generalise to every length approximately, provided that training sequences
are longer than a threshold, of which it gives no value. Students have an MLP readout, as their teachers. Runs with 10 tokens
are those of `length-capacity`.
"""

from __future__ import annotations

from collections.abc import Iterator

from recombine.recipes.experiment import Record, show_setting
from recombine.recipes.length_generalization.published import ABSTRACT
from recombine.recipes.length_generalization.runs import ORDER, STUDENTS, LengthExperiment, sequence_teacher
from recombine.recipes.measured_claims import HigherEach
from recombine.tasks.base import Scale

LENGTHS = (5, 40, 10, 20)  # the longest training sequence; the claims are about the first two


class TrainingLengths(LengthExperiment):
    """Students of higher capacity, trained on sequences of up to 5, 10, 20 and 40 tokens."""

    name = "length-training"
    question = (
        "Do students of higher capacity follow their teacher to 100 tokens if training sequences are long enough?"
    )
    known_before = "the runs with 10 tokens, which are those of `length-capacity`."
    claims = tuple(
        HigherEach(
            text="longer training sequences bring students of higher capacity closer to their teacher at 100 tokens "
            "(orders of magnitude of the squared error)",
            where=f"{show_setting(student)} with an MLP readout, {LENGTHS[0]} against {LENGTHS[1]} training tokens",
            headline=True,
            source=f"{ABSTRACT}, and theorems on thresholds of the length",
            of={"student": student, "tokens": LENGTHS[0]},
            than={"student": student, "tokens": LENGTHS[1]},
            quantity="log10_error",
            by=ORDER,
        )
        for student in STUDENTS
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for length in LENGTHS:
            for student in STUDENTS:
                config = sequence_teacher(
                    scale, student, model={"readout": "mlp"}, teacher_readout="mlp", max_length=length
                )
                yield Record(settings={"student": student, "tokens": length}, config=config)
