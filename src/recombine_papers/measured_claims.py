"""Claims about two scores of the same runs, and about numbers that are read from the networks themselves.

Numbers that are read from a network (`Experiment.measures`) have one value per seed, so their interval is Student's over
seeds. A single seed has no interval, and its verdict is at most "seen in part".

Logarithms of errors can differ between seeds by orders of magnitude, so that a mean and its interval say nothing about any
seed. Claims about them (`ReadsEach`, `LargestEach`, `HigherEach`, `ComputesEach`) have the median over seeds with the lowest
and the highest seed, and their verdict counts the seeds that meet the bound: all of them (seen), at least half (seen in
part), fewer (not seen) or none (refuted). A single seed is seen in part or not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from recombine.sweeps import Finished, FinishedRun, Setting, score_group
from recombine.training import SeedScore, score_values, subtract
from recombine_papers.calculation import Computes, log10_of
from recombine_papers.claims import AtLeast, Between, Level, Verdict, describe_bounds, difference, judge_range
from recombine_papers.experiment import PaperExperiment


@dataclass(frozen=True, kw_only=True)
class SeedRange(SeedScore):
    """The median over seeds; `low` and `high` are the lowest and the highest seed, not an interval."""


@dataclass(frozen=True, kw_only=True)
class Undecided(SeedScore):
    """A score that decides nothing, because the condition of the claim is not met."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Gap(AtLeast):
    """A network scores lower on held-out than on trained compositions."""

    number_name: ClassVar[str] = "trained minus held-out"
    of: Mapping[str, Setting]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        if group is None:
            return None
        return subtract(score_group(experiment, group, "test"), score_group(experiment, group, "ood"))


@dataclass(frozen=True, kw_only=True)
class NoGap(Gap):
    """A network scores on held-out compositions about as on trained ones; `by` is the largest gap that counts as none."""

    def judge(self, number: SeedScore) -> Verdict:
        return judge_range(number, float("-inf"), self.by)

    @property
    def bound(self) -> str:
        return f"{self.number_name} of at most {self.by:g}"


@dataclass(frozen=True, kw_only=True)
class FittedLevel(Level):
    """A score lies between bounds where trained compositions are fitted, and decides nothing where they are not."""

    fitted: float  # the score on trained compositions that counts as fitted

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        score, group = super().measure(experiment, finished), finished.find(**self.of)
        if score is None or group is None:
            return None
        trained = score_group(experiment, group, "test", self.metric).value
        if trained >= self.fitted:
            return score
        return Undecided(**vars(score), reason=f"trained compositions are not fitted ({trained:.3f})")

    def judge(self, number: SeedScore) -> Verdict:
        return "not run" if isinstance(number, Undecided) else super().judge(number)

    @property
    def bound(self) -> str:
        return f"{super().bound} if at least {self.fitted:g} on trained compositions"


@dataclass(frozen=True, kw_only=True)
class Bounded(Between):
    """The difference between two settings lies between bounds."""

    first: Mapping[str, Setting]
    second: Mapping[str, Setting]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        return difference(experiment, finished, self.first, self.second, self.split, self.metric)

    @property
    def bound(self) -> str:
        return f"difference {describe_bounds(self.low, self.high)}"


@dataclass(frozen=True, kw_only=True)
class Reads(Between):
    """A number that is read from the networks lies between bounds."""

    of: Mapping[str, Setting]
    quantity: str

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        values = [] if group is None else group.measured(self.quantity)
        return score_values(values) if values else None


@dataclass(frozen=True, kw_only=True)
class ReadsEach(Reads):
    """A number that is read from the networks lies between bounds in every seed."""

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        values = [self.read(run) for run in (() if group is None else group.runs)]
        return span_seeds([value for value in values if value is not None])

    def read(self, run: FinishedRun) -> float | None:
        """The number of one run, or None if it was not measured."""
        return run.measured.get(self.quantity)

    def judge(self, number: SeedScore) -> Verdict:
        return judge_seeds(self.count_within(number), number.num_seeds)

    @property
    def bound(self) -> str:
        return f"{super().bound} in every seed"


@dataclass(frozen=True, kw_only=True)
class LargestEach(ReadsEach):
    """The logarithm (base 10) of the largest of several numbers of a network lies between bounds in every seed."""

    others: tuple[str, ...]

    def read(self, run: FinishedRun) -> float | None:
        values = [run.measured.get(name) for name in (self.quantity, *self.others)]
        known = [value for value in values if value is not None]
        return log10_of(max(known)) if len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class ComputesEach(Computes):
    """A computed number lies between bounds in every seed."""

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        number = super().measure(experiment, finished)
        return number if number is None or self.exact or self.sample else span_seeds(number.values)

    def judge(self, number: SeedScore) -> Verdict:
        if not isinstance(number, SeedRange):
            return super().judge(number)
        return judge_seeds(self.count_within(number), number.num_seeds)

    @property
    def bound(self) -> str:
        return super().bound if self.exact or self.sample else f"{super().bound} in every seed"


@dataclass(frozen=True, kw_only=True)
class Exceeds(AtLeast):
    """A number that is read from the networks exceeds another one of the same networks."""

    of: Mapping[str, Setting]
    quantity: str
    over: str

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        runs = () if group is None else group.runs
        pairs = [run.measured for run in runs if {self.quantity, self.over} <= run.measured.keys()]
        return score_values([pair[self.quantity] - pair[self.over] for pair in pairs]) if pairs else None


@dataclass(frozen=True, kw_only=True)
class Higher(AtLeast):
    """A number that is read from the networks is higher in one setting than in another, with the same seeds."""

    of: Mapping[str, Setting]
    than: Mapping[str, Setting]
    quantity: str

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        differences = self.subtract_seeds(finished)
        return score_values(differences) if differences else None

    def subtract_seeds(self, finished: Finished) -> list[float]:
        """The difference of each seed that both settings have."""
        groups = (finished.find(**self.of), finished.find(**self.than))
        values = [
            {}
            if group is None
            else {run.record.seed: run.measured[self.quantity] for run in group.runs if self.quantity in run.measured}
            for group in groups
        ]
        seeds = sorted(values[0].keys() & values[1].keys())
        return [values[0][seed] - values[1][seed] for seed in seeds]


@dataclass(frozen=True, kw_only=True)
class HigherEach(Higher):
    """A number that is read from the networks is higher in one setting than in another, in every seed."""

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        return span_seeds(self.subtract_seeds(finished))

    def count_within(self, number: SeedScore) -> int:
        """How many seeds meet the bound by themselves."""
        return sum(value >= self.by for value in number.values)

    def judge(self, number: SeedScore) -> Verdict:
        """As for other differences, refuted only if it has the wrong sign: here in every seed."""
        verdict = judge_seeds(self.count_within(number), number.num_seeds)
        return "not seen" if verdict == "refuted" and number.high >= 0 else verdict

    @property
    def bound(self) -> str:
        return f"{super().bound} in every seed"


@dataclass(frozen=True, kw_only=True)
class Correlates(AtLeast):
    """Over all runs, a number that is read from the networks goes with their score."""

    number_name: ClassVar[str] = "Pearson correlation"
    quantity: str
    fair: bool = True  # only runs whose training compositions cover all modules and connect them

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        from scipy.stats import pearsonr

        runs = {run.run.path: run for run in finished.runs if self.quantity in run.measured}.values()
        chosen = [run for run in runs if not self.fair or (run.certificate["covered"] and run.certificate["connected"])]
        scores = [
            (run.measured[self.quantity], run.score(self.split or experiment.split, experiment.metric))
            for run in chosen
        ]
        pairs = [(quantity, score) for quantity, score in scores if score is not None]
        if len(pairs) < 4:
            return None
        result = pearsonr(*zip(*pairs, strict=True))
        interval = result.confidence_interval()
        seeds = {run.record.seed for run in chosen}
        value = float(result.statistic)
        return SeedScore(value=value, low=float(interval.low), high=float(interval.high), values=(value,) * len(seeds))


def span_seeds(values: Sequence[float]) -> SeedRange | None:
    """The median over seeds with the lowest and the highest, or None without values."""
    if not values:
        return None
    return SeedRange(value=median(values), low=min(values), high=max(values), values=tuple(values))


def judge_seeds(num_within: int, num_seeds: int) -> Verdict:
    """The verdict by how many seeds meet the bound."""
    if num_seeds == 1:
        return "seen in part" if num_within else "not seen"
    if num_within == num_seeds:
        return "seen"
    if num_within == 0:
        return "refuted"
    return "seen in part" if 2 * num_within >= num_seeds else "not seen"
