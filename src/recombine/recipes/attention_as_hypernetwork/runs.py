"""Attention as a Hypernetwork (arXiv 2406.05816): defaults of its tasks, its main comparisons, and table A1.

Published figures: table A1, fuzzy logic, OOD R² with 32 in-context examples and 70 % of the combinations held out,
mean and standard error over 3 seeds, with rate and decay chosen per method from {1e-3, 3e-3} x {0.03, 0.1}.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from recombine.layers.attention import AttentionName
from recombine.recipes.experiment import Experiment
from recombine.run import RunConfig, default_run
from recombine.tasks.base import Scale

MAIN_ATTENTIONS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")

PUBLISHED_FUZZY_LOGIC: dict[str, tuple[float, float]] = {
    "softmax": (0.6328, 0.0231),
    "linear": (0.5989, 0.0522),
    "hyla": (0.8113, 0.0777),
    "linear_rms_head": (0.6893, 0.0510),
    "linear_rms_head_nonlinear_value": (0.5691, 0.0425),
    "hyla_no_rms_head": (0.8127, 0.0788),
    "hyla_no_nonlinearity": (0.8454, 0.0532),
    "hyla_no_nonlinearity_no_rms_head": (0.7942, 0.0743),
    "hyla_softmax_no_rms_head": (0.7098, 0.0708),
    "hyla_deep": (0.8765, 0.0454),
    "hyla_softmax": (0.8247, 0.0422),
}
# of the mixtures of experts no standard error is known to us
PUBLISHED_MIXTURES: dict[str, float] = {"softmax": 0.6383, "linear": 0.6009, "hyla": 0.8237}


def with_attention(run: RunConfig, attention: AttentionName, **choices: Any) -> RunConfig:
    """The run with another attention, and other choices of its transformer."""
    return replace(run, model=replace(run.model, **{"attention": attention, **choices}))


def table_a1(scale: Scale) -> dict[str, RunConfig]:
    """Every attention of table A1, and three with a mixture of experts as feed-forward network."""
    base = default_run("fuzzy_logic", scale)
    runs: dict[str, RunConfig] = {name: with_attention(base, name) for name in get_args(AttentionName)}
    for name in MAIN_ATTENTIONS:
        runs[f"{name}_mixture_of_experts"] = with_attention(base, name, feedforward="mixture_of_experts")
    return runs


def compare_on_fuzzy_logic(scale: Scale) -> dict[str, RunConfig]:
    """The paper's main comparison."""
    return {name: with_attention(default_run("fuzzy_logic", scale), name) for name in MAIN_ATTENTIONS}


def compare_on_sraven(scale: Scale) -> dict[str, RunConfig]:
    """The same on the symbolic Raven matrices."""
    return {name: with_attention(default_run("sraven", scale), name) for name in MAIN_ATTENTIONS}


PUBLISHED_SRAVEN: dict[str, tuple[float, float]] = {
    "softmax": (0.5656, 0.0105),
    "linear": (0.5630, 0.0111),
    "hyla": (0.6913, 0.0190),
}

EXPERIMENTS = (
    Experiment(
        name="fuzzy-logic",
        question="Do softmax, linear and hypernetwork attention recombine fuzzy-logic terms?",
        runs=compare_on_fuzzy_logic,
        split="ood",
        metric="r2",
        published={name: PUBLISHED_FUZZY_LOGIC[name] for name in MAIN_ATTENTIONS},
    ),
    Experiment(
        name="sraven",
        question="Do softmax, linear and hypernetwork attention recombine the rules of Raven matrices?",
        runs=compare_on_sraven,
        split="ood",
        metric="accuracy",
        published=PUBLISHED_SRAVEN,
        published_scale="paper",
    ),
    Experiment(
        name="table-a1",
        question="Which part of hypernetwork attention helps it recombine fuzzy-logic terms?",
        runs=table_a1,
        split="ood",
        metric="r2",
        published=PUBLISHED_FUZZY_LOGIC
        | {f"{name}_mixture_of_experts": (value, float("nan")) for name, value in PUBLISHED_MIXTURES.items()},
    ),
)
