"""What the theorems assume, given up: diverse training sequences, and a teacher of the student's class (realisability)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from recombine.recipes.experiment import Finished, Record, show_setting
from recombine.recipes.length_generalization import figures
from recombine.recipes.length_generalization.runs import COUNTED, ORDER, STUDENTS, LengthExperiment, sequence_teacher
from recombine.recipes.measured_claims import HigherEach
from recombine.tasks.base import Scale

SUPPORTS = (0.05, 0.2, 0.5, 1.0)
POOLS = (4, 16, 64, 256)


class Diversity(LengthExperiment):
    """Training tokens from narrower intervals, or from few distinct sequences; held-out sequences stay the same."""

    name = "length-diversity"
    question = "How diverse must training sequences be for students to follow their teacher to 100 tokens?"
    known_before = f"earlier runs of the same experiment, one seed and 3,000 steps. {COUNTED}"
    claims = tuple(
        HigherEach(
            text=f"{text} (orders of magnitude at 100 tokens)",
            where=show_setting(student),
            source="our question: the theorems assume diversity",
            of={"student": student, name: few},
            than={"student": student, name: many},
            quantity="log10_ratio",
            by=ORDER,
            ours=True,
        )
        for student in ("deep_set", "attention")
        for name, few, many, text in (
            ("interval", 0.2, 1.0, "tokens from a fifth of the interval are not diverse enough"),
            ("sequences", 4, 256, "four distinct sequences are not diverse enough"),
        )
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for student in ("deep_set", "attention"):
            for support in SUPPORTS:
                config = sequence_teacher(scale, student, support=support)
                yield Record(settings={"student": student, "interval": support}, config=config)
            for size in POOLS:
                config = sequence_teacher(scale, student, num_sequences=size)
                yield Record(settings={"student": student, "sequences": size}, config=config)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return figures.draw_diversity(self.measure_runs(finished, "auto"), folder)


class Realisability(LengthExperiment):
    """Every student with every teacher, and with one that multiplies over the prefix where a deep set adds."""

    name = "length-realisability"
    question = "What breaks when the teacher is not of the student's class?"
    known_before = f"earlier runs of the same experiment, one seed and 3,000 steps. {COUNTED}"
    differs = (
        f"{LengthExperiment.differs} With the teacher that multiplies, 2 of 3 seeds count: in the third, the teacher's "
        "outputs do not vary at 100 tokens."
    )
    claims = tuple(
        HigherEach(
            text="a student fails with a teacher of another class (orders of magnitude at 100 tokens)",
            where=f"student {show_setting(student)}, teacher {show_setting(teacher)}",
            source="our question: the theorems assume realisability",
            of={"student": student, "teacher": teacher},
            than={"student": student, "teacher": student},
            quantity="log10_ratio",
            by=ORDER,
            ours=True,
        )
        for student in STUDENTS
        for teacher in (*STUDENTS, "product")
        if teacher != student
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for student in STUDENTS:
            for teacher in (*STUDENTS, "product"):
                config = sequence_teacher(scale, student, teacher=teacher)
                yield Record(settings={"student": student, "teacher": teacher}, config=config)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return figures.draw_realisability(self.measure_runs(finished, "auto"), folder)
