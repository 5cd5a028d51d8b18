"""Claims of a paper and their verdicts, by bounds that are written down.

    seen                      the number reaches the bound, and its 95 % interval excludes "no effect"
    seen in part              one of the two
    smaller than claimed      the interval of a difference lies above 0 and below the bound
    not seen                  neither
    refuted                   the interval lies on the other side of "no effect", or outside the bounds, at the paper's size
    not reached at our size   the same, but our networks or our training are smaller than the paper's
    preliminary               there is one seed, whatever its number
    not run                   a run that the claim needs is missing

**One seed decides nothing.** The interval of one seed covers the mean of two others in 57 % of cases. Numbers that need no
seed (counts, constructions, and estimates from one large sample) are exempt.

**Intervals** are Student's (`recombine.training.intervals`). With two seeds, tables show both values, but the interval decides.

**A lead and its excess.** A lead on held-out compositions may come from a better fit. Beside it stands the lead on trained
compositions, and the *excess*: per seed the one minus the other, with Student's interval over seeds. Headlines are about the
excess. A difference of `LEAD` or more is a lead, and one within ± `LEAD` is "about equal", so that no number is both.

**Several leads.** Within a paper, leads that would be seen are tested together (Holm 1979, at 5 %): what fails is seen in
part. "The best of several" is compared with the best of the others, by an interval that holds for all of them (Bonferroni).

**Several settings.** A statement that is judged in several settings reads "n of m settings, k seeds": in n of the m settings
with two seeds or more it is seen. One word stands for all only if all have the same verdict.

**Errors of any size.** Logarithms of errors can differ between seeds by orders of magnitude, so that neither a mean nor its
interval describes any seed. Claims about them are judged `per_seed`: the number is the median with the lowest and the highest
seed, and the verdict counts the seeds that meet the bound: all (seen), at least half (seen in part), fewer (not seen) or none
(refuted). A difference is refuted only if it has the wrong sign in every seed. An error is judged by its ratio to that of the
best constant predictor: an absolute bound may be met by a constant.

**Blind or known.** A row is *blind* if nothing was known of its results when its bound was set, otherwise *known*: where an
experiment discloses earlier results (`known_before`), unless they are not those of the claim, and where a claim was added or
changed later (`known`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from recombine.foundation import Column, Table
from recombine.sweeps import Setting
from recombine.training import CONFIDENCE, SeedScore, score_values, subtract
from recombine_papers.base import Experiment, Finished, cell, difference_between, score_group, show_metric

if TYPE_CHECKING:
    from recombine_papers.experiment import PaperExperiment

Verdict = Literal[
    "seen",
    "seen in part",
    "smaller than claimed",
    "preliminary",
    "not seen",
    "not reached at our size",
    "refuted",
    "not run",
]
Settings = Mapping[str, Setting]
CLAIM_COLUMN, BOUND_COLUMN = Column(name="claim", wrap=True), Column(name="bound", wrap=True)
SMALLEST = 1e-18  # logarithms of differences start here
FALSE_ALARMS = 0.05  # the probability that any of several leads is called seen by chance


@dataclass(frozen=True, kw_only=True)
class SeedRange(SeedScore):
    """The median over seeds; `low` and `high` are the lowest and the highest seed, not an interval."""


@dataclass(frozen=True, kw_only=True)
class Undecided(SeedScore):
    """A score that decides nothing, because the condition of the claim is not met."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """A statement, where it is printed, and how a number decides on it.

    Claims of a paper with the same text are one statement in several settings (`where`), the most telling one first.
    """

    text: str
    source: str
    where: str = ""  # the setting, where the statement is judged in several
    split: str | None = None  # default: the experiment's
    metric: str | None = None  # default: the experiment's
    published: float | None = None
    ours: bool = False  # a question of our own rather than a claim of the paper
    per_seed: bool = False  # judged by counting seeds; for measured and computed numbers
    known: bool | None = None  # whether results were known when the bound was set; default: as the experiment discloses
    tested: ClassVar[bool] = True  # whether any experiment can decide on it
    kind: ClassVar[tuple[str, str]] = ("claim about trained networks", "claims about trained networks")  # one, several

    @property
    def title(self) -> str:
        """The statement with its setting."""
        return f"{self.text} ({self.where})" if self.where else self.text

    @property
    def variants(self) -> list[Settings]:
        """The settings that the claim names."""
        return [value for value in vars(self).values() if isinstance(value, Mapping)]

    @property
    def quantities(self) -> tuple[str, ...]:
        """The measured or computed numbers that the claim reads."""
        return ()

    @property
    def needs_seeds(self) -> bool:
        """Whether the number depends on the seed, so that one seed decides nothing."""
        return True

    @abstractmethod
    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        """The number that decides, or None if a run is missing."""

    def judge(self, number: SeedScore) -> Verdict:
        """The verdict on a number."""
        if isinstance(number, Undecided):
            return "not run"
        if number.num_seeds == 1 and self.needs_seeds:
            return "preliminary"
        if not isinstance(number, SeedRange):
            return self.judge_interval(number)
        verdict = judge_seeds(sum(map(self.is_met, number.values)), number.num_seeds)
        return "not seen" if verdict == "refuted" and not self.is_refuted(number) else verdict

    @abstractmethod
    def judge_interval(self, number: SeedScore) -> Verdict:
        """The verdict on a number with an interval."""

    def is_met(self, value: float) -> bool:
        """Whether the value of one seed meets the bound."""
        return False

    def is_refuted(self, number: SeedRange) -> bool:
        """Whether seeds that all miss the bound refute the claim."""
        return True

    def count_within(self, number: SeedScore) -> int:
        """How many seeds meet the bound, for claims that are judged by the values of seeds; otherwise all."""
        return number.num_seeds

    def combine(self, values: Sequence[float]) -> SeedScore | None:
        """One number for the values of all seeds, or None if there are none."""
        if not values:
            return None
        if self.per_seed:
            return SeedRange(value=median(values), low=min(values), high=max(values), values=tuple(values))
        return score_values(values)

    @property
    def bound(self) -> str:
        """What the number must be, in words."""
        return f"{self.words} in every seed" if self.per_seed else self.words

    @property
    @abstractmethod
    def words(self) -> str:
        """The bound of a seed or an interval in words."""


@dataclass(frozen=True, kw_only=True)
class AtLeast(Claim):
    """The number, as a rule a difference, must be large enough."""

    number_name: ClassVar[str] = "difference"
    by: float

    def judge_interval(self, number: SeedScore) -> Verdict:
        return judge_lead(number, self.by)

    def is_met(self, value: float) -> bool:
        return value >= self.by

    def is_refuted(self, number: SeedRange) -> bool:
        return number.high < 0

    def count_within(self, number: SeedScore) -> int:
        return sum(map(self.is_met, number.values)) if self.per_seed else number.num_seeds

    @property
    def words(self) -> str:
        return f"{self.number_name} of at least {self.by:g}"


@dataclass(frozen=True, kw_only=True)
class Between(Claim):
    """The number must lie between bounds."""

    low: float = -math.inf
    high: float = math.inf

    def judge_interval(self, number: SeedScore) -> Verdict:
        return judge_range(number, self.low, self.high)

    def is_met(self, value: float) -> bool:
        return self.low <= value <= self.high

    def count_within(self, number: SeedScore) -> int:
        return sum(map(self.is_met, number.values))

    @property
    def words(self) -> str:
        return describe_bounds(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Level(Between):
    """A score lies between bounds, for instance near the published one."""

    of: Settings
    fitted: float | None = None  # decides only where the score on trained compositions is at least this

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        if group is None:
            return None
        score = score_group(experiment, group, self.split, self.metric)
        trained = score_group(experiment, group, "test", self.metric).value if self.fitted is not None else math.inf
        if self.fitted is None or trained >= self.fitted:
            return score
        return Undecided(**vars(score), reason=f"trained compositions are not fitted ({trained:.3f})")

    @property
    def words(self) -> str:
        condition = "" if self.fitted is None else f" if at least {self.fitted:g} on trained compositions"
        return f"{super().words}{condition}"


@dataclass(frozen=True, kw_only=True)
class Lead(AtLeast):
    """One setting scores better than another: higher, or lower where the metric is better when it is lower.

    Scores are paired by instance. Where the settings change the task, so that there are no common instances, set
    `paired=False`: both are then averaged over the seeds that they share.
    """

    better: Settings
    worse: Settings
    paired: bool = True

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        settings = (self.better, self.worse)
        if finished.runs and not show_metric(experiment, finished, self.metric).higher_is_better:
            settings = (self.worse, self.better)
        if self.paired:
            return compare(self, experiment, finished, *settings)
        groups = finished.find_all(*settings)
        if groups is None:
            return None
        return subtract(*(score_group(experiment, group, self.split, self.metric) for group in groups))

    def split_lead(self, experiment: Experiment, finished: Finished) -> Leads | None:
        """The lead on held-out and on trained compositions; None if a run is missing, or for other splits."""
        groups = finished.find_all(self.better, self.worse)
        if groups is None or (self.split or experiment.split) != "ood":
            return None
        better, worse = ({run.record.seed: run for run in group.runs} for group in groups)
        metric = self.metric or experiment.metric
        sign = 1 if show_metric(experiment, finished, self.metric).higher_is_better else -1
        leads: dict[str, list[float]] = {"ood": [], "test": []}
        for split, values in leads.items():
            for seed in sorted(better):
                scores = better[seed].score(split, metric), worse[seed].score(split, metric)
                if scores[0] is None or scores[1] is None:
                    return None
                values.append(sign * (scores[0] - scores[1]))
        excess = [held_out - trained for held_out, trained in zip(leads["ood"], leads["test"], strict=True)]
        return Leads(*map(score_values, (leads["ood"], leads["test"], excess)))


class Leads(NamedTuple):
    """A lead on held-out and on trained compositions, and their difference, with intervals over seeds."""

    held_out: SeedScore
    trained: SeedScore
    excess: SeedScore


@dataclass(frozen=True, kw_only=True)
class Excess(Lead):
    """A lead on held-out compositions exceeds the lead on trained ones: the better setting does not only fit better."""

    number_name: ClassVar[str] = "excess"

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        leads = self.split_lead(experiment, finished)
        return None if leads is None else leads.excess


def with_excess(lead: Lead) -> tuple[Excess, Lead]:
    """The excess of a lead, and the lead itself."""
    values: dict[str, Any] = {field.name: getattr(lead, field.name) for field in fields(lead)}
    changes = {"text": f"beyond a better fit, {lead.text}", "published": None, "known": True}
    return Excess(**values | changes), lead


@dataclass(frozen=True, kw_only=True)
class Difference(Between):
    """The paired difference between two settings lies between bounds."""

    first: Settings
    second: Settings

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        return compare(self, experiment, finished, self.first, self.second)

    @property
    def words(self) -> str:
        bounds = f"within ±{self.high:g}" if self.low == -self.high else describe_bounds(self.low, self.high)
        return f"difference {bounds}"


@dataclass(frozen=True, kw_only=True)
class Gap(AtLeast):
    """A network scores lower on held-out than on trained compositions; with `at_most`, by no more than `by`."""

    number_name: ClassVar[str] = "trained minus held-out"
    of: Settings
    at_most: bool = False

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        if group is None:
            return None
        return subtract(score_group(experiment, group, "test"), score_group(experiment, group, "ood"))

    def judge_interval(self, number: SeedScore) -> Verdict:
        return judge_range(number, -math.inf, self.by) if self.at_most else super().judge_interval(number)

    @property
    def words(self) -> str:
        return super().words.replace("at least", "at most") if self.at_most else super().words


@dataclass(frozen=True, kw_only=True)
class Reads(Between):
    """A number that is measured in the networks lies between bounds."""

    of: Settings
    quantity: str
    largest_of: tuple[str, ...] = ()  # the logarithm (base 10) of the largest of `quantity` and these

    @property
    def quantities(self) -> tuple[str, ...]:
        return (self.quantity, *self.largest_of)

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        group = finished.find(**self.of)
        numbers = [run.measured for run in (() if group is None else group.runs)]
        complete = [[run[name] for name in self.quantities] for run in numbers if run.keys() >= set(self.quantities)]
        return self.combine([log10_of(max(values)) if self.largest_of else values[0] for values in complete])


@dataclass(frozen=True, kw_only=True)
class Exceeds(AtLeast):
    """A number that is measured in the networks exceeds another of the same networks (`over`), or the same number of
    networks with other settings and the same seeds (`than`)."""

    of: Settings
    quantity: str
    over: str | None = None
    than: Settings | None = None

    @property
    def quantities(self) -> tuple[str, ...]:
        return (self.quantity, self.over or self.quantity)

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        higher = read_seeds(finished, self.of, self.quantity)
        lower = read_seeds(finished, self.than or self.of, self.over or self.quantity)
        return self.combine([higher[seed] - lower[seed] for seed in sorted(higher.keys() & lower.keys())])


@dataclass(frozen=True, kw_only=True)
class Correlates(AtLeast):
    """Over all runs, a number that is measured in the networks is correlated with their score."""

    number_name: ClassVar[str] = "Pearson correlation"
    quantity: str
    fair: bool = True  # only runs whose training compositions cover all modules and connect them

    @property
    def quantities(self) -> tuple[str, ...]:
        return (self.quantity,)

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        from scipy.stats import pearsonr

        runs = {run.run.path: run for run in finished.runs if self.quantity in run.measured}.values()
        chosen = [run for run in runs if run.is_fair or not self.fair]
        split = self.split or experiment.split
        scores = [(run.measured[self.quantity], run.score(split, experiment.metric)) for run in chosen]
        pairs = [(quantity, score) for quantity, score in scores if score is not None]
        if len(pairs) < 4:
            return None
        result = pearsonr(*zip(*pairs, strict=True))
        interval, value = result.confidence_interval(), float(result.statistic)
        values = (value,) * len({run.record.seed for run in chosen})
        return SeedScore(value=value, low=float(interval.low), high=float(interval.high), values=values)


@dataclass(frozen=True, kw_only=True)
class Computes(Between):
    """A number that a `Calculation` computes lies between bounds."""

    kind = ("theorem or count", "theorems and counts")
    quantity: str
    exact: bool = False  # a count or a construction that does not depend on the seed
    sample: str = ""  # the sample of an estimate with its own interval, such as "4,096 puzzles"

    @property
    def needs_seeds(self) -> bool:
        return not (self.exact or self.sample)

    @property
    def quantities(self) -> tuple[str, ...]:
        ends = ("low", "high") if self.sample else ()
        return (self.quantity, *(f"{self.quantity}_{end}" for end in ends))

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        values = finished.computed.get(self.quantity)
        if values and self.exact:
            return SeedScore(value=values[0], low=min(values), high=max(values), values=values[:1])
        if values and self.sample:
            low, high = (finished.computed[name][0] for name in self.quantities[1:])
            return SeedScore(value=values[0], low=low, high=high, values=values[:1])
        return self.combine(values or ())


@dataclass(frozen=True, kw_only=True)
class Untested(Claim):
    """A claim that no experiment here can test, and what a test would need.

    If a test would need networks that are too large to be trained here, `of` has the settings, which no record has.
    """

    tested = False
    needs: str
    of: Settings | None = None

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        return None

    def judge_interval(self, number: SeedScore) -> Verdict:
        raise AssertionError("a claim that is not tested has no number")

    @property
    def words(self) -> str:
        return f"needs {self.needs}"


def decide(claim: Claim, experiment: PaperExperiment, finished: Finished) -> tuple[Verdict, SeedScore | None]:
    """The verdict on a claim, and the number that decides."""
    number = claim.measure(experiment, finished)
    verdict: Verdict = "not run" if number is None else claim.judge(number)
    small = verdict == "refuted" and not experiment.has_size_of_paper(claim, finished)
    return "not reached at our size" if small else verdict, number


def holm(chances: Sequence[float]) -> list[float]:
    """The adjusted probabilities of several tests (Holm 1979): each is at most 5 % where its test still holds."""
    adjusted, highest = [0.0] * len(chances), 0.0
    for rank, position in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[position]))
        adjusted[position] = highest
    return adjusted


def correct_leads(
    claims: Sequence[Claim], decided: Sequence[tuple[Verdict, SeedScore | None]]
) -> list[tuple[Verdict, float | None]]:
    """Verdicts after Holm's test over the leads that would be seen, and the probability of each lead: what fails is seen in part."""
    leads = {
        position: number
        for position, (claim, (verdict, number)) in enumerate(zip(claims, decided, strict=True))
        if isinstance(claim, Lead) and verdict == "seen" and number is not None
    }
    chances = dict(zip(leads, holm([chance_of_lead(number) for number in leads.values()]), strict=True))
    return [
        ("seen in part" if chances.get(position, 0.0) > FALSE_ALARMS else verdict, chances.get(position))
        for position, (verdict, _) in enumerate(decided)
    ]


def chance_of_lead(number: SeedScore) -> float:
    """The probability of a difference as far from 0 as this one if there is none, by its Student's interval over seeds."""
    from scipy.stats import t

    degrees, half = number.num_seeds - 1, number.value - number.low
    return 2 * float(t.sf(abs(number.value) / half * t.ppf((1 + CONFIDENCE) / 2, degrees), degrees)) if half else 0.0


def widen_for_all(number: SeedScore, count: int) -> SeedScore:
    """The interval of one of several differences, so that those of all hold together (Bonferroni)."""
    from scipy.stats import t

    if number.num_seeds == 1:
        return number
    tail, degrees = (1 - CONFIDENCE) / 2, number.num_seeds - 1
    factor = float(t.isf(tail / count, degrees) / t.isf(tail, degrees))
    below, above = factor * (number.value - number.low), factor * (number.high - number.value)
    return replace(number, low=number.value - below, high=number.value + above)


def tabulate_claims(claims: Sequence[Claim], experiment: PaperExperiment, finished: Finished) -> Table:
    """One row per claim: the verdict, our number and the published one."""
    rows = []
    decided = [decide(claim, experiment, finished) for claim in claims]
    for claim, (_, number), (verdict, _) in zip(claims, decided, correct_leads(claims, decided), strict=True):
        seeds = None if number is None else number.num_seeds
        rows.append((claim.title, verdict, cell(number), seeds, claim.bound, claim.published, claim.source))
    return Table(
        title="Claims",
        columns=(CLAIM_COLUMN, "verdict", "number", "seeds", BOUND_COLUMN, "paper", Column(name="source", wrap=True)),
        rows=tuple(rows),
        note="in brackets: 95 % intervals, or the values of two seeds; where the bound is for every seed, the median with the "
        "lowest and the highest; leads pass Holm's test over those of this table, in `recombine reproduce claims` over those of the paper",
    )


def compare(
    claim: Claim, experiment: Experiment, finished: Finished, first: Settings, second: Settings
) -> SeedScore | None:
    """The paired difference between two settings, or None if a run is missing."""
    group, other = finished.find(**first), finished.find(**second)
    if group is None or other is None:
        return None
    return difference_between(experiment, group, other, claim.split, claim.metric)


def read_seeds(finished: Finished, settings: Settings, quantity: str) -> dict[int, float]:
    """A measured number by seed, of the runs that have it."""
    group = finished.find(**settings)
    runs = () if group is None else group.runs
    return {run.record.seed: run.measured[quantity] for run in runs if quantity in run.measured}


def describe_bounds(low: float, high: float) -> str:
    """Bounds in words."""
    smallest, largest = (f"{bound:.3g}".replace("-", "−") for bound in (low, high))
    if low == high:
        return f"exactly {smallest}"
    if low == -math.inf:
        return f"at most {largest}"
    return f"at least {smallest}" if high == math.inf else f"{smallest} to {largest}"


def judge_lead(number: SeedScore, by: float) -> Verdict:
    """The verdict on a difference that should be at least `by`."""
    if number.high < 0:
        return "refuted"
    if number.low > 0 and number.high < by:
        return "smaller than claimed"
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


def judge_seeds(num_within: int, num_seeds: int) -> Verdict:
    """The verdict by the number of seeds that meet the bound."""
    if num_within == num_seeds:
        return "seen"
    if num_within == 0:
        return "refuted"
    return "seen in part" if 2 * num_within >= num_seeds else "not seen"


def log10_of(difference: float) -> float:
    """The logarithm (base 10) of a number that may be 0."""
    return math.log10(max(difference, SMALLEST))
