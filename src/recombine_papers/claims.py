"""Claims of a paper and their verdicts, by bounds that are written down before the runs are made.

    seen            the number reaches the bound, and its 95 % interval excludes "no effect"
    seen in part    one of the two
    not seen        neither
    refuted         the 95 % interval lies on the other side of "no effect", or outside the bounds
    not run         a run that the claim needs is missing

The interval is over compositions, and over seeds where there are several (`recombine.training.intervals`). Where there are two,
tables show their values instead; the interval still decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from recombine.foundation import Column, Table
from recombine.sweeps import Finished, Setting, cell, difference_between, score_group, show_metric
from recombine.training import SeedScore, subtract
from recombine_papers.experiment import PaperExperiment

Verdict = Literal["seen", "seen in part", "not seen", "refuted", "not run"]


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """A statement, where it is printed, and how a number decides on it.

    Claims of a paper with the same text are one statement in several settings (`where`), the most telling one first.
    """

    text: str
    source: str
    where: str = ""  # the setting, where the statement is judged in several
    headline: bool = False  # part of the short form of the card
    split: str | None = None  # if not the experiment's
    metric: str | None = None  # if not the experiment's
    published: float | None = None
    ours: bool = False  # a question of our own rather than a claim of the paper
    tested: ClassVar[bool] = True  # whether any experiment can decide on it
    kind: ClassVar[tuple[str, str]] = ("claim about trained networks", "claims about trained networks")  # one, several

    @property
    def title(self) -> str:
        """The statement with its setting."""
        return f"{self.text} ({self.where})" if self.where else self.text

    @property
    def variants(self) -> list[Mapping[str, Setting]]:
        """The settings that the claim names."""
        return [value for value in vars(self).values() if isinstance(value, Mapping)]

    @abstractmethod
    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        """The number that decides, or None if a run is missing."""

    @abstractmethod
    def judge(self, number: SeedScore) -> Verdict:
        """The verdict on a number."""

    @property
    @abstractmethod
    def bound(self) -> str:
        """What the number must be, in words."""


@dataclass(frozen=True, kw_only=True)
class AtLeast(Claim):
    """The number, as a rule a difference, must be large enough."""

    number_name: ClassVar[str] = "difference"
    by: float

    def judge(self, number: SeedScore) -> Verdict:
        return judge_lead(number, self.by)

    @property
    def bound(self) -> str:
        return f"{self.number_name} of at least {self.by:g}"


@dataclass(frozen=True, kw_only=True)
class Between(Claim):
    """The number must lie between bounds."""

    low: float = float("-inf")
    high: float = float("inf")

    def judge(self, number: SeedScore) -> Verdict:
        return judge_range(number, self.low, self.high)

    @property
    def bound(self) -> str:
        return describe_bounds(self.low, self.high)

    def count_within(self, number: SeedScore) -> int:
        """How many seeds meet the bounds by themselves."""
        return sum(self.low <= value <= self.high for value in number.values)


@dataclass(frozen=True, kw_only=True)
class Lead(AtLeast):
    """One setting scores better than another: higher, or lower where the metric is better when it is lower."""

    better: Mapping[str, Setting]
    worse: Mapping[str, Setting]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        higher, lower = self.better, self.worse
        if finished.runs and not show_metric(experiment, finished, self.metric).higher_is_better:
            higher, lower = lower, higher
        return difference(experiment, finished, higher, lower, self.split, self.metric)


@dataclass(frozen=True, kw_only=True)
class Fall(AtLeast):
    """The score falls from one setting to another whose task is different, so that instances cannot be paired.

    Both are taken over the seeds that they have in common.
    """

    higher: Mapping[str, Setting]
    lower: Mapping[str, Setting]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        groups = finished.find_all(self.higher, self.lower)
        if groups is None:
            return None
        higher, lower = (score_group(experiment, group, self.split, self.metric) for group in groups)
        return subtract(higher, lower)


@dataclass(frozen=True, kw_only=True)
class Close(Claim):
    """Two settings score about the same."""

    first: Mapping[str, Setting]
    second: Mapping[str, Setting]
    within: float

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        return difference(experiment, finished, self.first, self.second, self.split, self.metric)

    def judge(self, number: SeedScore) -> Verdict:
        return judge_range(number, -self.within, self.within)

    @property
    def bound(self) -> str:
        return f"difference within ±{self.within:g}"


@dataclass(frozen=True, kw_only=True)
class Level(Between):
    """A score lies between bounds, for instance near the published one."""

    of: Mapping[str, Setting]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        return None if group is None else score_group(experiment, group, self.split, self.metric)


def decide(claim: Claim, experiment: PaperExperiment, finished: Finished) -> tuple[Verdict, SeedScore | None]:
    """The verdict on a claim, and the number that decides."""
    number = claim.measure(experiment, finished)
    return ("not run" if number is None else claim.judge(number)), number


def tabulate_claims(claims: Sequence[Claim], experiment: PaperExperiment, finished: Finished) -> Table:
    """One row per claim: the verdict, our number and the published one."""
    rows = []
    for claim in claims:
        verdict, number = decide(claim, experiment, finished)
        seeds = None if number is None else number.num_seeds
        rows.append((claim.title, verdict, cell(number), seeds, claim.bound, claim.published, claim.source))
    return Table(
        title="Claims",
        columns=(
            Column(name="claim", wrap=True),
            "verdict",
            "number",
            "seeds",
            Column(name="bound", wrap=True),
            "paper",
            Column(name="source", wrap=True),
        ),
        rows=tuple(rows),
        note="bounds are set before the runs that they judge; in brackets: 95 % intervals, or the values of two seeds; "
        "where the bound is for every seed, the median with the lowest and the highest",
    )


def difference(
    experiment: PaperExperiment,
    finished: Finished,
    first: Mapping[str, Setting],
    second: Mapping[str, Setting],
    split: str | None,
    metric: str | None = None,
) -> SeedScore | None:
    """The paired difference between two settings, or None if a run is missing."""
    group, other = finished.find(**first), finished.find(**second)
    return None if group is None or other is None else difference_between(experiment, group, other, split, metric)


def describe_bounds(low: float, high: float) -> str:
    """What a number must be, in words."""
    smallest, largest = (f"{bound:.3g}".replace("-", "−") for bound in (low, high))
    if low == high:
        return f"exactly {smallest}"
    if low == float("-inf"):
        return f"at most {largest}"
    return f"at least {smallest}" if high == float("inf") else f"{smallest} to {largest}"


def judge_lead(number: SeedScore, by: float) -> Verdict:
    """The verdict on a difference that should be at least `by`."""
    if number.high < 0:
        return "refuted"
    if number.value >= by and number.low > 0:
        return "seen"
    return "seen in part" if number.value >= by or number.low > 0 else "not seen"


def judge_range(number: SeedScore, low: float, high: float) -> Verdict:
    """The verdict on a number that should lie between bounds."""
    if number.low > high or number.high < low:
        return "refuted"
    if low <= number.low and number.high <= high:
        return "seen"
    return "seen in part" if low <= number.value <= high else "not seen"
