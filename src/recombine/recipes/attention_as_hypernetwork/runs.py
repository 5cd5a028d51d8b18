"""The main comparisons of Attention as a Hypernetwork (arXiv 2406.05816)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recombine.layers.attention import AttentionName
from recombine.recipes.attention_as_hypernetwork import published
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
