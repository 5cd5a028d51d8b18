"""Table A1: what each part of hypernetwork attention contributes, on fuzzy logic and on SRAVEN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

from recombine.attention import AttentionName
from recombine.sweeps import Published, Record
from recombine.tasks import Scale
from recombine.training import RunConfig, SeedScore, default_run
from recombine_papers.base import Experiment, Finished, difference_between, score_group
from recombine_papers.claims import AtLeast, Claim, Difference, Lead, Settings, widen_for_all
from recombine_papers.experiment import PaperExperiment
from recombine_papers.hypernetwork import published
from recombine_papers.hypernetwork.fuzzy_logic import (
    ATTENTIONS,
    CLOSE,
    FUZZY_SOURCE,
    LEAD,
    RELEASE_DROPOUT,
    SEEDS,
    SHORT_STEPS,
    change_model,
    with_steps,
)
from recombine_papers.hypernetwork.sraven import SRAVEN_SOURCE, SRAVEN_STEPS
from recombine_papers.learning_curves import NAMES

Numbers = dict[str, Published]
OTHERS = tuple(attention for attention in get_args(AttentionName) if attention != "hyla")


@dataclass(frozen=True, kw_only=True)
class Best(AtLeast):
    """One setting scores at least as high as the best of others: that with the highest mean over the seeds of all.

    The best of the others is chosen by the scores that are compared, so its interval holds for all of them together.
    """

    number_name: ClassVar[str] = "difference to the best other row"
    best: Settings
    others: tuple[Settings, ...]

    @property
    def variants(self) -> list[Settings]:
        return [self.best, *self.others]

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        groups = finished.find_all(*self.variants)
        if groups is None:
            return None
        best, *others = groups
        highest = max(others, key=lambda group: score_group(experiment, group, self.split, self.metric).value)
        difference = difference_between(experiment, best, highest, self.split, self.metric)
        return None if difference is None else widen_for_all(difference, len(others))


def claim_part(text: str, better: str, worse: str, numbers: Numbers, source: str, where: str = "") -> Lead:
    """One attention of the table recombines better than another, by LEAD or by the paper's own difference if that is less."""
    difference = round(numbers[better].value - numbers[worse].value, 4)
    return Lead(
        text=text,
        where=where,
        source=source,
        better={"attention": better, "feedforward": "mlp"},
        worse={"attention": worse, "feedforward": "mlp"},
        by=min(LEAD, difference) if difference > 0 else LEAD,
        published=difference,
    )


def claim_column(prefix: str, numbers: Numbers, mixtures: Numbers, source: str) -> Iterator[Claim]:
    """The sentences of appendix A.1 about one column of the table."""
    mlp = {"feedforward": "mlp"}
    yield claim_part(
        f"{prefix}normalisation over heads alone helps linear attention", "linear_rms_head", "linear", numbers, source
    )
    value, plain = "linear_rms_head_nonlinear_value", "linear_rms_head"
    yield Difference(
        text=f"{prefix}a nonlinear value network alone does not help",
        source=source,
        first={"attention": value, **mlp},
        second={"attention": plain, **mlp},
        high=LEAD,
        published=round(numbers[value].value - numbers[plain].value, 4),
    )
    yield claim_part(
        f"{prefix}the second use of the code helps even without nonlinearity",
        "hyla_no_nonlinearity",
        plain,
        numbers,
        source,
    )
    for without, where in (("hyla_no_rms_head", "normalisation over heads"), ("hyla_no_nonlinearity", "nonlinearity")):
        yield claim_part(
            f"{prefix}HYLA needs normalisation over heads and nonlinearity in combination",
            "hyla",
            without,
            numbers,
            f"sections 3.1 and A.1, {source}",
            f"with both against without {where}",
        )
    yield Best(
        text=f"{prefix}the full HYLA generally performs best",
        where=f"against the best of the {len(OTHERS)} other attentions",
        source=f"section A.1, {source}",
        best={"attention": "hyla", **mlp},
        others=tuple({"attention": attention, **mlp} for attention in OTHERS),
        by=0.0,
        published=round(numbers["hyla"].value - max(numbers[name].value for name in OTHERS), 4),
    )
    for text, better, worse in (
        ("normalising over keys instead of heads hurts", "hyla", "hyla_softmax_no_rms_head"),
        ("HYLA with a deeper value network recombines better than softmax attention", "hyla_deep", "softmax"),
        ("HYLA with a softmax in addition recombines better than softmax attention", "hyla_softmax", "softmax"),
    ):
        yield claim_part(prefix + text, better, worse, numbers, source)
    for attention in ATTENTIONS:
        yield claim_mixture(prefix, attention, numbers, mixtures, source)


def claim_mixture(prefix: str, attention: str, numbers: Numbers, mixtures: Numbers, source: str) -> Difference:
    """A mixture of experts in place of the feed-forward network changes the score moderately at most."""
    return Difference(
        text=f"{prefix}a mixture of experts changes the score moderately at most",
        where=NAMES[attention],
        source=f"section A.1, {source}",
        first={"attention": attention, "feedforward": "mixture_of_experts"},
        second={"attention": attention, "feedforward": "mlp"},
        low=-CLOSE,
        high=CLOSE,
        published=round(mixtures[attention].value - numbers[attention].value, 4),
    )


def list_rows(base: RunConfig, numbers: Numbers, mixtures: Numbers) -> Iterator[Record]:
    """Every attention of the table, and three with a mixture of experts as feed-forward network."""
    for attention in get_args(AttentionName):
        yield Record(
            settings={"attention": attention, "feedforward": "mlp"},
            config=change_model(base, attention=attention),
            published=numbers.get(attention),
        )
    for attention in ATTENTIONS:
        yield Record(
            settings={"attention": attention, "feedforward": "mixture_of_experts"},
            config=change_model(base, attention=attention, feedforward="mixture_of_experts"),
            published=mixtures.get(attention),
        )


class TableA1(PaperExperiment):
    """The column of fuzzy logic, with attention dropout 0.1; softmax, linear and HYLA are runs of `dropout`."""

    name = "table-a1"
    core_hours = (0.53, 15, 13)
    question = "Which part of hypernetwork attention helps it recombine fuzzy-logic terms?"
    metric = "r2"
    compared = "attention"
    claims = tuple(claim_column("", published.FUZZY_LOGIC, published.FUZZY_LOGIC_MIXTURES, FUZZY_SOURCE))
    differs = (
        "20,000 steps (`small`) instead of 50,000; three seeds of the attentions, one of the mixtures of experts; bf16. "
        "Trained with attention dropout 0.1, as the authors' code does."
    )
    known_before = (
        "seed 0 of all attentions except HYLA without normalisation over heads, HYLA without both parts and HYLA with a "
        "softmax in addition, and three seeds of softmax, linear attention and HYLA, when these claims were added or "
        "corrected: the nonlinear value network, both parts in combination, the best row, and the deeper value network and "
        "the additional softmax against softmax attention."
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        base = change_model(default_run("fuzzy_logic", scale), attention_dropout=RELEASE_DROPOUT)
        base = with_steps(base, SHORT_STEPS if scale == "small" else base.training.steps)
        rows = list(list_rows(base, published.FUZZY_LOGIC, published.FUZZY_LOGIC_MIXTURES))
        yield from rows
        for seed in SEEDS[1:] if scale == "small" else ():
            yield from (row.with_seed(seed) for row in rows if row.settings["feedforward"] == "mlp")


class TableA1SRaven(PaperExperiment):
    """The column of SRAVEN; softmax, linear and HYLA are runs of `sraven-paper` without dropout."""

    name = "table-a1-sraven"
    core_hours = (0.82, 2.9, None)
    question = "Which part of hypernetwork attention helps it recombine rules?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "paper"
    claims = tuple(claim_column("on Raven matrices, ", published.SRAVEN, published.SRAVEN_MIXTURES, SRAVEN_SOURCE))
    differs = "10 million instances instead of 20, no dropout, one seed; bf16."
    known_before = (
        "softmax, linear attention and HYLA, when these claims were added or corrected: the nonlinear value network, "
        "normalisation over heads in linear attention, the second use of the code, the best row, the deeper value network, "
        "the additional softmax, and the mixture of experts in linear attention."
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        base = default_run("sraven", scale)
        base = with_steps(base, SRAVEN_STEPS if scale == "paper" else base.training.steps)
        return list_rows(base, *(({}, {}) if scale != "paper" else (published.SRAVEN, published.SRAVEN_MIXTURES)))
