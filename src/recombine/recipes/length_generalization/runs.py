"""On Provable Length and Compositional Generalization (arXiv 2402.04875): students of four classes, and what they need.

Published: with limited capacity and diverse data, students trained on at most 10 tokens follow their teacher to 100, and
their hidden states are a linear map of the teacher's (see `published`); with higher capacity this fails unless the
intermediate values are supervised. AdamW, rate 1e-3, decay 0.01, betas 0.9 and 0.95, batch 256. The paper trains for 100
epochs of a data set whose size we do not know. We draw new sequences at every step; the number of steps and the cosine to
0 are our choice. The seed determines the teacher, the student and the data.

Deep sets and recurrent networks are badly conditioned: at the paper's rate they do not converge in these steps, so they are
also trained at ten times that rate.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.recipes.claims import Level
from recombine.recipes.experiment import Experiment, Finished, Record, over_seeds, show_setting
from recombine.recipes.length_generalization import figures, published, tables
from recombine.recipes.measured_claims import Higher, Reads
from recombine.run import RunConfig, default_run
from recombine.store import RunDirectory
from recombine.tables import Table
from recombine.tasks import SequenceTeacher
from recombine.tasks.base import Scale

STUDENTS = SequenceTeacher.models
SUPPORTS = (0.05, 0.2, 0.5, 1.0)
POOLS = (4, 16, 64, 256)
HIGHER_RATE = 1e-2
SUPERVISION = {"outputs only": 0.0, "chain of thought": 1.0}


def sequence_teacher(scale: Scale, student: str, *, model: dict[str, Any] | None = None, **task: Any) -> RunConfig:
    """A student with a teacher of its class, unless the task says otherwise."""
    run = default_run("sequence_teacher", scale, student)
    return replace(run, task=replace(run.task, **task), model=replace(run.model, **(model or {})))


def raise_rate(record: Record) -> Record:
    """The record at ten times the paper's rate."""
    config = replace(record.config, training=replace(record.config.training, learning_rate=HIGHER_RATE))
    return replace(record, settings={**record.settings, "rate": HIGHER_RATE}, config=config)


class LengthExperiment(Experiment):
    """Three seeds (one at `tiny`), and tables of the error at each length and of linear identification."""

    metric = "r2"
    known_before = "earlier runs of the same experiment, one seed and 3,000 steps for diversity and realisability."
    num_seeds: int = 3
    default_scale = "paper"
    differs = (
        "New sequences at every step instead of 100 epochs; the number of steps and the cosine schedule are our choice."
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        return over_seeds(self.variants(scale), range(1 if scale == "tiny" else self.num_seeds))

    @abstractmethod
    def variants(self, scale: Scale) -> Iterator[Record]:
        """One record per variant."""

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return tables.read_lengths(run, device)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [*self.claim_tables(finished, device), *tables.tabulate_lengths(finished, device)]

    def summarise(self, finished: Finished) -> Table:
        return tables.tabulate_measured(finished)


class LimitedCapacity(LengthExperiment):
    """The paper's main experiment; also softmax attention, and a higher rate where students converge slowly."""

    name = "length-generalization"
    question = "Do students of limited capacity, trained on 10 tokens, follow their teacher to 100?"
    claims = tuple(
        claim
        for student in (*STUDENTS, "softmax_attention")
        for claim in (
            Reads(
                text="students match their teacher at 100 tokens (log10 of the squared error)",
                where=show_setting(student),
                headline=True,
                source="arXiv 2402.04875",
                of={"student": student, "rate": 1e-3},
                quantity="log10_error",
                high=-3.0,
                published=-4.0,
            ),
            Reads(
                text="hidden states are a linear map of the teacher's (R² at 100 tokens)",
                where=show_setting(student),
                headline=True,
                source="arXiv 2402.04875",
                of={"student": student, "rate": 1e-3},
                quantity="identified",
                low=0.95,
                published=published.R2[0],
            ),
        )
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        plain = {
            student: Record(settings={"student": student, "rate": 1e-3}, config=sequence_teacher(scale, student))
            for student in STUDENTS
        }
        yield from plain.values()
        softmax = sequence_teacher(scale, "attention", model={"attention": "softmax"}, teacher_attention="softmax")
        yield Record(settings={"student": "softmax_attention", "rate": 1e-3}, config=softmax)
        for student in ("deep_set", "rnn"):
            yield raise_rate(plain[student])

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [
            *self.claim_tables(finished, device),
            *tables.tabulate_lengths(finished, device, with_published=True),
        ]

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return figures.draw_lengths(self.measure_runs(finished, "auto"), folder)


class HigherCapacity(LengthExperiment):
    """Teacher and student with an MLP readout, without and with supervision of the hidden states."""

    name = "length-capacity"
    question = "Does higher capacity fail on long sequences, and does chain of thought repair it?"
    claims = tuple(
        claim
        for student in STUDENTS
        for claim in (
            Reads(
                text="students of higher capacity fail at 100 tokens (log10 of the ratio to a constant)",
                where=f"{show_setting(student)} with an MLP readout",
                headline=True,
                source="arXiv 2402.04875",
                of={"student": student, "supervision": "outputs only", "rate": 1e-3},
                quantity="log10_ratio",
                low=-1.0,
            ),
            Higher(
                text="chain of thought repairs students of higher capacity (orders of magnitude)",
                where=f"{show_setting(student)} with an MLP readout",
                headline=True,
                source="arXiv 2402.04875",
                of={"student": student, "supervision": "outputs only", "rate": 1e-3},
                than={"student": student, "supervision": "chain of thought", "rate": 1e-3},
                quantity="log10_ratio",
                by=0.5,
            ),
        )
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        plain = [self.build(scale, student, supervision) for student in STUDENTS for supervision in SUPERVISION]
        yield from plain
        for record in plain:
            if record.settings["student"] == "deep_set":
                yield raise_rate(record)

    def build(self, scale: Scale, student: str, supervision: str) -> Record:
        config = sequence_teacher(
            scale,
            student,
            model={"readout": "mlp"},
            teacher_readout="mlp",
            chain_of_thought=SUPERVISION[supervision],
        )
        return Record(settings={"student": student, "supervision": supervision, "rate": 1e-3}, config=config)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return figures.draw_capacity(self.measure_runs(finished, "auto"), folder)


class Corners(LengthExperiment):
    """The compositional split."""

    name = "length-composition"
    question = "Do students follow their teacher to corners of the cube that are left out of training?"
    claims = tuple(
        Level(
            text="students generalise to held-out compositions of ranges",
            where=show_setting(student),
            headline=True,
            source="arXiv 2402.04875",
            of={"student": student},
            low=0.9,
        )
        for student in STUDENTS
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for student in STUDENTS:
            yield Record(
                settings={"student": student}, config=sequence_teacher(scale, student, generalise_to="corners")
            )

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return {}

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [*self.claim_tables(finished, device), *tables.tabulate_corners(finished)]

    def summarise(self, finished: Finished) -> Table:
        return tables.tabulate_corners(finished)[0]


class Diversity(LengthExperiment):
    """Training tokens from narrower intervals, or from few distinct sequences; held-out sequences stay the same."""

    name = "length-diversity"
    question = "How diverse must training sequences be for students to follow their teacher to 100 tokens?"
    claims = tuple(
        Higher(
            text=f"{text} (orders of magnitude at 100 tokens)",
            where=show_setting(student),
            source="arXiv 2402.04875, assumption of diversity",
            of={"student": student, name: few},
            than={"student": student, name: many},
            quantity="log10_ratio",
            by=1.0,
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
    claims = tuple(
        Higher(
            text="a student fails with a teacher of another class (orders of magnitude at 100 tokens)",
            where=f"student {show_setting(student)}, teacher {show_setting(teacher)}",
            source="arXiv 2402.04875, assumption of realisability",
            of={"student": student, "teacher": teacher},
            than={"student": student, "teacher": student},
            quantity="log10_ratio",
            by=1.0,
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
