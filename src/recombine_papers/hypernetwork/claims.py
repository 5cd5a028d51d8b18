"""Forms of claims that only this paper needs: a smaller fall, the best of a table, and what is out of reach here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from recombine.sweeps import Finished, Setting, difference_between, score_group
from recombine.training import SeedScore, subtract
from recombine_papers.calculation import Untested
from recombine_papers.claims import AtLeast
from recombine_papers.experiment import PaperExperiment


@dataclass(frozen=True, kw_only=True)
class FallsLess(AtLeast):
    """From an easy to a hard task, the score of one setting falls less than that of another.

    The difference between the falls is that between the leads on the hard and on the easy task. Each lead is paired, because
    both settings solve the same instances; the two tasks have instances of their own. Only seeds that all four have count.
    """

    number_name: ClassVar[str] = "difference between the falls"
    easy: Mapping[str, Setting]
    hard: Mapping[str, Setting]
    easy_other: Mapping[str, Setting]
    hard_other: Mapping[str, Setting]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        groups = finished.find_all(self.easy, self.hard, self.easy_other, self.hard_other)
        if groups is None:
            return None
        easy, hard, easy_other, hard_other = groups
        before = difference_between(experiment, easy, easy_other, self.split, self.metric)
        after = difference_between(experiment, hard, hard_other, self.split, self.metric)
        return None if before is None or after is None else subtract(after, before)


@dataclass(frozen=True, kw_only=True)
class Best(AtLeast):
    """One setting scores at least as high as the best of others: that with the highest mean over the seeds of all."""

    number_name: ClassVar[str] = "difference to the best other row"
    best: Mapping[str, Setting]
    others: tuple[Mapping[str, Setting], ...]

    @property
    def variants(self) -> list[Mapping[str, Setting]]:
        return [self.best, *self.others]

    def measure(self, experiment: PaperExperiment, finished: Finished) -> SeedScore | None:
        groups = finished.find_all(*self.variants)
        if groups is None:
            return None
        best, *others = groups
        highest = max(others, key=lambda group: score_group(experiment, group, self.split, self.metric).value)
        return difference_between(experiment, best, highest, self.split, self.metric)


@dataclass(frozen=True, kw_only=True)
class OutOfReach(Untested):
    """A claim about networks that are too large to be trained here: no record of the experiment has the settings `of`."""

    of: Mapping[str, Setting]
