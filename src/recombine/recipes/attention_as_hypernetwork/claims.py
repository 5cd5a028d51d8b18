"""Forms of claims that only this paper needs: a smaller fall, the best of a table, and what is out of reach here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from recombine.recipes.calculation import Untested
from recombine.recipes.claims import AtLeast
from recombine.recipes.comparison import difference_between, score_group
from recombine.recipes.experiment import Experiment, Finished, Group, Setting, matches
from recombine.seeds import SeedScore, subtract


@dataclass(frozen=True, kw_only=True)
class FallsLess(AtLeast):
    """From an easy to a hard task, one setting falls less than another.

    The difference between the falls is that between the leads on the hard and on the easy task. Each lead is paired, because
    both settings solve the same instances; the two tasks have instances of their own. Only seeds that all four groups have
    are used.
    """

    number_name: ClassVar[str] = "difference between the falls"
    easy: Mapping[str, Setting]
    hard: Mapping[str, Setting]
    easy_other: Mapping[str, Setting]
    hard_other: Mapping[str, Setting]

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        wanted = (self.easy, self.hard, self.easy_other, self.hard_other)
        groups = [group for settings in wanted if (group := finished.find(**settings)) is not None]
        if len(groups) < len(wanted) or not (groups := keep_common_seeds(groups)):
            return None
        easy, hard, easy_other, hard_other = groups
        before = difference_between(experiment, easy, easy_other, self.split, self.metric)
        after = difference_between(experiment, hard, hard_other, self.split, self.metric)
        return None if before is None or after is None else subtract(after, before)


@dataclass(frozen=True, kw_only=True)
class Best(AtLeast):
    """One setting scores at least as high as the best of `num_others` others, which have the settings `among`.

    The best of the others is that with the highest mean over the seeds that all of them have.
    """

    number_name: ClassVar[str] = "difference to the best other row"
    best: Mapping[str, Setting]
    among: Mapping[str, Setting]
    num_others: int

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        own = finished.find(**self.best)
        rows = [group for group in finished.groups if matches(group.settings, self.among)]
        others = [group for group in rows if not matches(group.settings, self.best)]
        if own is None or len(others) < self.num_others or not (groups := keep_common_seeds([own, *others])):
            return None
        own, *others = groups
        highest = max(others, key=lambda group: score_group(experiment, group, self.split, self.metric).value)
        return difference_between(experiment, own, highest, self.split, self.metric)


@dataclass(frozen=True, kw_only=True)
class OutOfReach(Untested):
    """A claim about networks that are too large to be trained here; no run of the experiment has their settings."""

    of: Mapping[str, Setting]


def keep_common_seeds(groups: list[Group]) -> list[Group]:
    """The groups with the runs of those seeds that all of them have; none if there is no such seed."""
    common = set.intersection(*({run.record.seed for run in group.runs} for group in groups))
    return [
        replace(group, runs=tuple(run for run in group.runs if run.record.seed in common)) for group in groups if common
    ]
