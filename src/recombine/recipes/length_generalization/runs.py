"""On Provable Length and Compositional Generalization (arXiv 2402.04875): students of four classes, and what they need.

Published: with limited capacity and diverse data, squared error of 1e-4 to 1e-7 at every length up to 100 after training
on at most 10 tokens, and hidden states that are a linear map of the teacher's with R² 0.96-0.99; with higher capacity this
fails unless the intermediate values are supervised. AdamW, rate 1e-3, decay 0.01, betas 0.9 and 0.95, batch 256. The
paper trains for 100 epochs of a set whose size we do not know; we take new sequences at every step, and the number of steps
and the cosine to 0 are our own choice. Seeds are those of teacher, student and data together.

Deep sets and recurrent networks are badly conditioned, and the paper's rate does not get to the bottom in these steps: they
are trained at ten times that rate as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recombine.recipes.experiment import Experiment, over_seeds
from recombine.recipes.length_generalization.tables import capacity_tables, composition_tables, length_tables
from recombine.run import RunConfig, default_run
from recombine.tasks import SequenceTeacher
from recombine.tasks.base import Scale

STUDENTS = SequenceTeacher.models
SUPPORTS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
POOLS = (4, 16, 64, 256, 1_024)
HIGHER_RATE = 1e-2


def sequence_teacher(scale: Scale, student: str, *, model: dict[str, Any] | None = None, **task: Any) -> RunConfig:
    """A student and, unless the task says otherwise, a teacher of its class."""
    run = default_run("sequence_teacher", scale, student)
    return replace(run, task=replace(run.task, **task), model=replace(run.model, **(model or {})))


def over_three_seeds(scale: Scale, runs: dict[str, RunConfig]) -> dict[str, RunConfig]:
    return over_seeds(runs, range(1 if scale == "tiny" else 3))


def limited_capacity(scale: Scale) -> dict[str, RunConfig]:
    """The paper's main experiment; attention with softmax, and what converges slowly at a higher rate, as well."""
    runs = {student: sequence_teacher(scale, student) for student in STUDENTS}
    softmax = sequence_teacher(scale, "attention", model={"attention": "softmax"}, teacher_attention="softmax")
    faster = {f"{student}, rate {HIGHER_RATE:g}": raise_rate(runs[student]) for student in ("deep_set", "rnn")}
    return over_three_seeds(scale, {**runs, "attention, softmax": softmax, **faster})


def raise_rate(run: RunConfig) -> RunConfig:
    return replace(run, training=replace(run.training, learning_rate=HIGHER_RATE))


def higher_capacity(scale: Scale) -> dict[str, RunConfig]:
    """Teacher and student with an MLP as readout, without and with supervision of the hidden states."""
    runs = {
        f"{student}, {name}": sequence_teacher(
            scale, student, model={"readout": "mlp"}, teacher_readout="mlp", chain_of_thought=weight
        )
        for student in STUDENTS
        for name, weight in (("outputs only", 0.0), ("chain of thought", 1.0))
    }
    faster = {
        f"{label}, rate {HIGHER_RATE:g}": raise_rate(run) for label, run in runs.items() if label.startswith("deep_set")
    }
    return over_three_seeds(scale, {**runs, **faster})


def corners(scale: Scale) -> dict[str, RunConfig]:
    """The compositional split."""
    runs = {student: sequence_teacher(scale, student, held_out="corners") for student in STUDENTS}
    return over_three_seeds(scale, runs)


def diversity(scale: Scale) -> dict[str, RunConfig]:
    """Training tokens from narrower intervals, or from few distinct sequences; held-out sequences stay the same."""
    runs = {}
    for student in ("deep_set", "attention"):
        for support in SUPPORTS:
            name = f"{student}, tokens from an interval of {support:g}"
            runs[name] = sequence_teacher(scale, student, support=support)
        for size in POOLS:
            runs[f"{student}, {size} sequences"] = sequence_teacher(scale, student, num_sequences=size)
    return over_seeds(runs, [0])


def realisability(scale: Scale) -> dict[str, RunConfig]:
    """Every student with every teacher, and with one that multiplies over the prefix where a deep set adds."""
    runs = {
        f"{student}, taught by {teacher}": sequence_teacher(scale, student, teacher=teacher)
        for student in STUDENTS
        for teacher in (*STUDENTS, "product")
    }
    return over_seeds(runs, [0])


EXPERIMENTS = (
    Experiment(
        name="length-generalization",
        question="Do students of limited capacity, trained on 10 tokens, follow their teacher to 100?",
        runs=limited_capacity,
        split="ood",
        metric="r2",
        tables=length_tables,
    ),
    Experiment(
        name="length-capacity",
        question="Does higher capacity fail on long sequences, and does chain of thought mend it?",
        runs=higher_capacity,
        split="ood",
        metric="r2",
        tables=capacity_tables,
    ),
    Experiment(
        name="length-composition",
        question="Do students follow their teacher to corners of the cube that training leaves out?",
        runs=corners,
        split="ood",
        metric="r2",
        tables=composition_tables,
    ),
    Experiment(
        name="length-diversity",
        question="How diverse must training sequences be for students to follow their teacher to 100 tokens?",
        runs=diversity,
        split="ood",
        metric="r2",
        tables=capacity_tables,
    ),
    Experiment(
        name="length-realisability",
        question="What breaks when the teacher is not of the student's class?",
        runs=realisability,
        split="ood",
        metric="r2",
        tables=capacity_tables,
    ),
)
