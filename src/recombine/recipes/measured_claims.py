"""Claims about two scores of the same runs, and about numbers that are read from the networks themselves.

Numbers that are read from a network (`Experiment.measures`) have one value per seed, so their interval is Student's over
seeds. A single seed has no interval, and its verdict is at most "seen in part".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from recombine.recipes.claims import AtLeast, Between, Verdict, describe_bounds, difference, judge_range
from recombine.recipes.comparison import score_group
from recombine.recipes.experiment import Experiment, Finished, Setting
from recombine.seeds import SeedScore, score_values, subtract


@dataclass(frozen=True, kw_only=True)
class Gap(AtLeast):
    """A network scores lower on held-out than on trained compositions."""

    number_name: ClassVar[str] = "trained minus held-out"
    of: Mapping[str, Setting]

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
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
class Bounded(Between):
    """The difference between two settings lies between bounds."""

    first: Mapping[str, Setting]
    second: Mapping[str, Setting]

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        return difference(experiment, finished, self.first, self.second, self.split, self.metric)

    @property
    def bound(self) -> str:
        return f"difference {describe_bounds(self.low, self.high)}"


@dataclass(frozen=True, kw_only=True)
class Reads(Between):
    """A number that is read from the networks lies between bounds."""

    of: Mapping[str, Setting]
    quantity: str

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        values = [] if group is None else group.measured(self.quantity)
        return score_values(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Exceeds(AtLeast):
    """A number that is read from the networks exceeds another one of the same networks."""

    of: Mapping[str, Setting]
    quantity: str
    over: str

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
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

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        groups = (finished.find(**self.of), finished.find(**self.than))
        values = [
            {}
            if group is None
            else {run.record.seed: run.measured[self.quantity] for run in group.runs if self.quantity in run.measured}
            for group in groups
        ]
        seeds = sorted(values[0].keys() & values[1].keys())
        return score_values([values[0][seed] - values[1][seed] for seed in seeds]) if seeds else None


@dataclass(frozen=True, kw_only=True)
class Correlates(AtLeast):
    """Over all runs, a number that is read from the networks goes with their score."""

    number_name: ClassVar[str] = "Pearson correlation"
    quantity: str
    fair: bool = True  # only runs whose training compositions cover all modules and connect them

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
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
