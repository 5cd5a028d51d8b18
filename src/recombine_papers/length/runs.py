"""On Provable Length and Compositional Generalization (arXiv 2402.04875): students of four classes, and what they need.

With limited capacity and diverse data, students trained on at most 10 tokens match their teacher at up to 100, and their hidden
states are a linear map of the teacher's; with higher capacity they need not, unless the intermediate values are supervised.
AdamW, rate 1e-3, decay 0.01, betas 0.9 and 0.95, batch 256. The paper trains for 100 epochs of a data set of unknown size. We
draw new sequences at every step; the number of steps and the cosine to 0 are our choice. The seed determines the teacher, the
student and the data.

Deep sets and recurrent networks are badly conditioned: at the paper's rate they do not converge in these steps, so they are
also trained at ten times that rate.

Longer training sequences (`length-training`): the paper proves that general classes of functions generalise to every length
approximately, provided that training sequences are longer than a threshold, of which it gives no value. Students have an MLP
readout, as their teachers. Runs with 10 tokens are those of `length-capacity`.

Assumptions of the theorems, given up: diverse training sequences (`length-diversity`), and a teacher of the student's class
(`length-realisability`).

Tables have the median over seeds with the lowest and the highest, because single seeds can be off by orders of magnitude and
would dominate a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.foundation import Column, Table, Value, show_setting
from recombine.sweeps import Record
from recombine.tasks import Scale, SequenceTeacher
from recombine.training import Json, RunConfig, RunDirectory, default_run
from recombine_papers.base import Finished, Group, spread, tabulate_groups
from recombine_papers.claims import Claim, Exceeds, Level, Reads, Settings, log10_of
from recombine_papers.experiment import SeededExperiment
from recombine_papers.length import figures
from recombine_papers.length.figures import LENGTHS, LONGEST
from recombine_papers.length.identification import identify_run

R2 = (0.96, 0.99)  # of the teacher's hidden states from a linear map of the student's
PAPER = "arXiv 2402.04875"
ABSTRACT = f"{PAPER}, abstract"

NUM_SEQUENCES = 2_000  # to fit a map, and as many to score it
SEED_NOTE = "median over seeds, in brackets the lowest and the highest"
RATIO_NOTE = "ratio: to the squared error of the best constant at that position; 1 is no better than the constant"

STUDENTS = SequenceTeacher.models
HIGHER_RATE = 1e-2
SUPERVISION = {"outputs only": 0.0, "chain of thought": 1.0}
LIMITED = "limited capacity"
MATCHED = -2.0  # log10 of the ratio to the best constant that counts as a match
ORDER = 1.0  # of magnitude
COUNTED = (
    "When all results were known, verdicts on orders of magnitude began to count seeds, and a match became an error of at "
    "most a hundredth of the best constant's instead of at most 1e-3."
)


def sequence_teacher(scale: Scale, student: str, *, model: dict[str, Any] | None = None, **task: Any) -> RunConfig:
    """A student with a teacher of its class, unless the task says otherwise."""
    run = default_run("sequence_teacher", scale, student)
    return replace(run, task=replace(run.task, **task), model=replace(run.model, **(model or {})))


def raise_rate(record: Record) -> Record:
    """The record at ten times the paper's rate."""
    config = replace(record.config, training=replace(record.config.training, learning_rate=HIGHER_RATE))
    return replace(record, settings={**record.settings, "rate": HIGHER_RATE}, config=config)


def ratio_to_constant(found: Json, length: int) -> float | None:
    """The error of a trained student at a length, divided by that of the best constant; None if that is 0."""
    error, constant = (float(found["trained"][name][length - 1]) for name in ("loss", "constant_loss"))
    return error / constant if constant else None


def read_lengths(run: RunDirectory, device: str) -> dict[str, float]:
    """Error, its ratio to the best constant, and R² of the linear map: at the longest length, and for figures at some others.

    `missed` is 1 − R². Where a teacher's outputs do not vary at all, no constant errs, and there is no ratio.
    """
    found, last = identify_run(run.path, num_sequences=NUM_SEQUENCES, device=device), LONGEST - 1
    trained, untrained = found["trained"], found["untrained"]
    numbers = {"log10_error": log10_of(trained["loss"][last])}
    if (ratio := ratio_to_constant(found, LONGEST)) is not None:
        numbers["log10_ratio"] = log10_of(ratio)
    if "transfer" in trained["r2"]:
        numbers |= {
            "identified": trained["r2"]["transfer"][last],
            "identified_before": untrained["r2"]["transfer"][last],
        }
    for length in LENGTHS:
        numbers[f"error_{length}"] = trained["loss"][length - 1]
        if (ratio := ratio_to_constant(found, length)) is not None:
            numbers[f"ratio_{length}"] = ratio
        if "transfer" in trained["r2"]:
            numbers[f"missed_{length}"] = 1 - trained["r2"]["transfer"][length - 1]
            numbers[f"missed_before_{length}"] = 1 - untrained["r2"]["transfer"][length - 1]
    return numbers


def tabulate_measured(finished: Finished) -> Table:
    """Error and ratio at 10 and 100 tokens, and R² of the hidden states before and after training, medians over seeds."""

    def list_cells(group: Group) -> list[Value]:
        numbers = [f"{name}_{length}" for name in ("error", "ratio") for length in (10, 100)]
        numbers += ["identified_before", "identified"]
        return [len(group.runs), *(spread(group.measured(name), "median") for name in numbers)]

    return tabulate_groups(
        finished,
        "Squared error, its ratio to the best constant, and R² of the teacher's hidden states at 100 tokens",
        (
            "seeds",
            *scientific("error, T = 10", "error, T = 100", "ratio, T = 10", "ratio, T = 100"),
            "R² before",
            "R² after",
        ),
        list_cells,
        f"{SEED_NOTE}\n{RATIO_NOTE}",
    )


def tabulate_corners(finished: Finished) -> Table:
    """Scores on the training distribution and on the corners, both at the last token."""

    def list_cells(group: Group) -> Iterator[Value]:
        for split in ("test", "ood"):
            yield spread(group.scores(split, "loss"), "median")
            yield spread([1 - r2 for r2 in group.scores(split, "r2")], "median")

    title = "Squared error where trained (ID) and in the corners (OOD)"
    columns = scientific("ID", "ID ratio", "OOD", "OOD ratio")
    return tabulate_groups(finished, title, columns, list_cells, f"{SEED_NOTE}\n{RATIO_NOTE}")


def scientific(*names: str) -> list[Column]:
    """Columns of numbers that differ by orders of magnitude."""
    return [Column(name=name, format="scientific") for name in names]


class LengthExperiment(SeededExperiment):
    """Three seeds (one at `tiny`), and a table of the error and of linear identification."""

    metric = "r2"
    quantities = (
        *("log10_error", "log10_ratio", "identified", "identified_before"),
        *(f"{name}_{length}" for length in LENGTHS for name in ("error", "ratio", "missed", "missed_before")),
    )
    known_before = f"earlier runs of the same experiment. {COUNTED}"
    default_scale = "paper"
    differs = (
        "New sequences at every step instead of 100 epochs; the number of steps and the cosine schedule are our choice."
    )

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return read_lengths(run, device)

    def summarise(self, finished: Finished) -> Table:
        return tabulate_measured(finished)


def claim_limited(student: str) -> Iterator[Claim]:
    """A student of limited capacity matches its teacher, in outputs and in hidden states."""
    setting: dict[str, Any] = {"where": show_setting(student), "of": {"student": student, "rate": 1e-3}}
    match: dict[str, Any] = {"source": f"{PAPER}, experiments: 1e-7 to 1e-4", "high": MATCHED, "per_seed": True}
    yield Reads(
        text="students match their teacher at 100 tokens (log10 of the ratio to a constant)",
        quantity="log10_ratio",
        **setting,
        **match,
    )
    yield Reads(
        text="students match their teacher at every length (log10 of the largest ratio to a constant, 1 to 100 tokens)",
        quantity="ratio_100",
        largest_of=tuple(f"ratio_{length}" for length in LENGTHS[:-1]),
        **setting,
        **match,
    )
    yield Reads(
        text="hidden states are a linear map of the teacher's (R² at 100 tokens)",
        source=f"{PAPER}, experiments: 0.96 to 0.99",
        quantity="identified",
        low=0.95,
        published=R2[0],
        **setting,
    )


class LimitedCapacity(LengthExperiment):
    """The paper's main experiment; also softmax attention, and a higher rate where students converge slowly."""

    name = "length-generalization"
    core_hours = (0.0078, 0.1, 0.3)
    question = "Do students of limited capacity, trained on 10 tokens, follow their teacher to 100?"
    known_before = f"earlier runs of the same experiment; for the errors at every length, all results. {COUNTED}"
    differs = (
        f"{LengthExperiment.differs} The paper's squared errors are 1e-7 to 1e-4; a constant can have one of 1e-3 at 100 tokens, "
        "so errors are judged by their ratio to that of the best constant. The column *paper* has the lowest R²."
    )
    claims = tuple(claim for student in (*STUDENTS, "softmax_attention") for claim in claim_limited(student))

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

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return figures.draw_lengths(self.measure_runs(finished, "auto"), folder)


def claim_higher(student: str) -> Iterator[Claim]:
    """A student of higher capacity fails where one of limited capacity does not, and chain of thought repairs it."""
    settings: list[Settings] = [
        {"student": student, "supervision": supervision, "rate": 1e-3} for supervision in (LIMITED, *SUPERVISION)
    ]
    limited, outputs, thoughts = settings
    where = f"{show_setting(student)} with an MLP readout"
    shared: dict[str, Any] = {"where": where, "quantity": "log10_ratio", "per_seed": True}
    yield Exceeds(
        text="students of higher capacity are worse at 100 tokens than those of limited capacity "
        "(orders of magnitude of the ratio to a constant)",
        source=f"{ABSTRACT}, which promises success for limited capacity only",
        of=outputs,
        than=limited,
        by=ORDER,
        **shared,
    )
    yield Exceeds(
        text="chain of thought repairs students of higher capacity (orders of magnitude)",
        source=ABSTRACT,
        of=outputs,
        than=thoughts,
        by=0.5,
        **shared,
    )
    yield Reads(
        text="with chain of thought, students of higher capacity match their teacher at 100 tokens "
        "(log10 of the ratio to a constant)",
        source=ABSTRACT,
        of=thoughts,
        high=MATCHED,
        **shared,
    )
    yield Reads(
        text="students of higher capacity fail at 100 tokens (log10 of the ratio to a constant)",
        source="our question: by the paper they need not follow their teacher, which `length-theory` shows",
        of=outputs,
        low=-1.0,
        ours=True,
        **shared,
    )


class HigherCapacity(LengthExperiment):
    """Teacher and student with an MLP readout, without and with supervision of the hidden states.

    For comparison, the runs of `length-generalization`: teacher and student with a readout of one layer.
    """

    name = "length-capacity"
    core_hours = (0.017, 0.22, 0.68)
    question = "Do students of higher capacity fail on long sequences, and does chain of thought repair it?"
    known_before = (
        "earlier runs of the same experiment; for the comparison with limited capacity and for the error with chain of "
        f"thought, all results. {COUNTED}"
    )
    claims = tuple(claim for student in STUDENTS for claim in claim_higher(student))

    def variants(self, scale: Scale) -> Iterator[Record]:
        plain = [self.build(scale, student, supervision) for student in STUDENTS for supervision in SUPERVISION]
        yield from plain
        for record in plain:
            if record.settings["student"] == "deep_set":
                yield raise_rate(record)
        for student in STUDENTS:
            yield Record(
                settings={"student": student, "supervision": LIMITED, "rate": 1e-3},
                config=sequence_teacher(scale, student),
            )

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
    core_hours = (0.0034, 0.057, 0.18)
    question = "Do students follow their teacher to corners of the cube that are left out of training?"
    known_before = "earlier runs of the same experiment."
    claims = tuple(
        Level(
            text="students trained on the middle of the ranges follow their teacher to the corners (R²)",
            where=show_setting(student),
            source=f"{ABSTRACT}: compositional generalisation",
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

    quantities = ()

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return {}

    def summarise(self, finished: Finished) -> Table:
        return tabulate_corners(finished)


TRAINING_LENGTHS = (5, 40, 10, 20)  # the longest training sequence; the claims are about the first two


class TrainingLengths(LengthExperiment):
    """Students of higher capacity, trained on sequences of up to 5, 10, 20 and 40 tokens."""

    name = "length-training"
    core_hours = (0.012, 0.17, 0.53)
    question = (
        "Do students of higher capacity follow their teacher to 100 tokens if training sequences are long enough?"
    )
    known_before = "the runs with 10 tokens, which are those of `length-capacity`."
    claims = tuple(
        Exceeds(
            text="longer training sequences bring students of higher capacity closer to their teacher at 100 tokens "
            "(orders of magnitude of the squared error)",
            where=f"{show_setting(student)} with an MLP readout, {TRAINING_LENGTHS[0]} against {TRAINING_LENGTHS[1]} training tokens",
            source=f"{ABSTRACT}, and theorems on thresholds of the length",
            of={"student": student, "tokens": TRAINING_LENGTHS[0]},
            than={"student": student, "tokens": TRAINING_LENGTHS[1]},
            quantity="log10_error",
            by=ORDER,
            per_seed=True,
        )
        for student in STUDENTS
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for length in TRAINING_LENGTHS:
            for student in STUDENTS:
                config = sequence_teacher(
                    scale, student, model={"readout": "mlp"}, teacher_readout="mlp", max_length=length
                )
                yield Record(settings={"student": student, "tokens": length}, config=config)


SUPPORTS = (0.05, 0.2, 0.5, 1.0)
POOLS = (4, 16, 64, 256)


class Diversity(LengthExperiment):
    """Training tokens from narrower intervals, or from few distinct sequences; held-out sequences stay the same."""

    name = "length-diversity"
    core_hours = (0.018, 0.24, 0.69)
    question = "How diverse must training sequences be for students to follow their teacher to 100 tokens?"
    known_before = f"earlier runs of the same experiment, one seed and 3,000 steps. {COUNTED}"
    claims = tuple(
        Exceeds(
            text=f"{text} (orders of magnitude at 100 tokens)",
            where=show_setting(student),
            source="our question: the theorems assume diversity",
            of={"student": student, name: few},
            than={"student": student, name: many},
            quantity="log10_ratio",
            by=ORDER,
            ours=True,
            per_seed=True,
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
    core_hours = (0.023, 0.3, 0.89)
    question = "What breaks when the teacher is not of the student's class?"
    known_before = f"earlier runs of the same experiment, one seed and 3,000 steps. {COUNTED}"
    differs = (
        f"{LengthExperiment.differs} With the teacher that multiplies, 2 of 3 seeds count: in the third, the teacher's "
        "outputs do not vary at 100 tokens."
    )
    claims = tuple(
        Exceeds(
            text="a student fails with a teacher of another class (orders of magnitude at 100 tokens)",
            where=f"student {show_setting(student)}, teacher {show_setting(teacher)}",
            source="our question: the theorems assume realisability",
            of={"student": student, "teacher": teacher},
            than={"student": student, "teacher": student},
            quantity="log10_ratio",
            by=ORDER,
            ours=True,
            per_seed=True,
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
