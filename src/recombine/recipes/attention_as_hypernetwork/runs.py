"""The main comparisons of Attention as a Hypernetwork (arXiv 2406.05816), and its table A1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from recombine.layers.attention import AttentionName
from recombine.recipes.attention_as_hypernetwork import published
from recombine.recipes.claims import Lead
from recombine.recipes.experiment import Experiment, Published, Record
from recombine.run import RunConfig, default_run
from recombine.tasks.base import Scale

ATTENTIONS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")


def change_model(run: RunConfig, **choices: Any) -> RunConfig:
    """The run with other choices of its model."""
    return replace(run, model=replace(run.model, **choices))


def change_task(run: RunConfig, **choices: Any) -> RunConfig:
    """The run with other choices of its task."""
    return replace(run, task=replace(run.task, **choices))


class FuzzyLogicComparison(Experiment):
    """The paper's main comparison."""

    name = "fuzzy-logic"
    question = "Do softmax, linear and hypernetwork attention recombine fuzzy-logic terms?"
    metric = "r2"
    compared = "attention"

    def records(self, scale: Scale) -> Iterator[Record]:
        for attention in ATTENTIONS:
            config = change_model(default_run("fuzzy_logic", scale), attention=attention)
            yield Record(settings={"attention": attention}, config=config, published=published.FUZZY_LOGIC[attention])


class SRavenComparison(Experiment):
    """The same comparison on the symbolic Raven matrices. Published numbers are for four features, `--scale paper`."""

    name = "sraven"
    question = "Do softmax, linear and hypernetwork attention recombine the rules of Raven matrices?"
    metric = "accuracy"
    compared = "attention"

    def records(self, scale: Scale) -> Iterator[Record]:
        for attention in ATTENTIONS:
            config = change_model(default_run("sraven", scale), attention=attention)
            number: Published | None = published.SRAVEN[attention] if scale == "paper" else None
            yield Record(settings={"attention": attention}, config=config, published=number)


def claim_part(text: str, better: str, worse: str, by: float = 0.05) -> Lead:
    """One attention of table A1 recombines better than another."""
    return Lead(
        text=text,
        source="table A1, fuzzy logic",
        better={"attention": better, "feedforward": "mlp"},
        worse={"attention": worse, "feedforward": "mlp"},
        by=by,
        published=published.FUZZY_LOGIC[better].value - published.FUZZY_LOGIC[worse].value,
    )


class TableA1(Experiment):
    """Every attention of table A1, and three with a mixture of experts as feed-forward network."""

    name = "table-a1"
    question = "Which part of hypernetwork attention helps it recombine fuzzy-logic terms?"
    metric = "r2"
    compared = "attention"
    claims = (
        claim_part("normalisation over heads alone helps linear attention", "linear_rms_head", "linear"),
        claim_part("a nonlinear value network alone does not help", "hyla", "linear_rms_head_nonlinear_value"),
        claim_part(
            "the second use of the code helps even without nonlinearity", "hyla_no_nonlinearity", "linear_rms_head"
        ),
        claim_part("normalising over keys instead of heads hurts", "hyla", "hyla_softmax_no_rms_head"),
        claim_part("a deeper value network helps further", "hyla_deep", "hyla"),
        claim_part("HYLA is ahead of softmax attention", "hyla", "softmax"),
    )
    differs = (
        "20,000 steps (`small`) instead of 50,000, one seed; bf16. Trained with the release's dropout, as published."
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        base = change_model(
            default_run("fuzzy_logic", scale), attention_dropout=0.1
        )  # softmax, linear, HYLA: as `dropout`
        steps = 20_000 if scale == "small" else base.training.steps
        base = replace(base, training=replace(base.training, steps=steps, precision="bf16"))
        for attention in get_args(AttentionName):
            yield Record(
                settings={"attention": attention, "feedforward": "mlp"},
                config=change_model(base, attention=attention),
                published=published.FUZZY_LOGIC.get(attention),
            )
        for attention in ATTENTIONS:
            yield Record(
                settings={"attention": attention, "feedforward": "mixture_of_experts"},
                config=change_model(base, attention=attention, feedforward="mixture_of_experts"),
                published=published.FUZZY_LOGIC_MIXTURES[attention],
            )
