"""When can transformers compositionally generalize in-context? (arXiv 2407.12275): its comparison, and what to ask beside it.

A vanilla transformer against one with a bottleneck (task inferred, then carried out by a generated network), each on

    connected       shared modules, training combinations on a ring
    disconnected    shared modules in two halves that never meet in training
    control         as many combinations, each with modules of its own

and on the connected support also the bottleneck without hypernetwork, and linear and hypernetwork (HYLA) attention as trunk.
The paper gives no figures that we could stand beside ours, only claims: `in_context_claims` checks them. Sizes and steps
of `tiny` and `small` are our choice for minutes on a CPU; `paper` takes the sizes of a sister paper's generator and a
budget of our choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recombine.layers.attention import AttentionName
from recombine.recipes.experiment import Experiment, over_seeds
from recombine.recipes.in_context.claims import conclude
from recombine.run import RunConfig, default_run
from recombine.tasks.base import Scale

SETTINGS: dict[str, dict[str, Any]] = {
    "connected": {},
    "disconnected": {"support": "disconnected"},
    "control": {"modules": "own"},
}
MODELS = ("vanilla", "bottleneck", "bottleneck mlp")
TRUNKS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")
NUM_SEEDS: dict[Scale, int] = {"tiny": 1, "small": 3, "paper": 3}


def build_run(scale: Scale, model: str, attention: AttentionName = "softmax") -> RunConfig:
    """The vanilla transformer, the bottleneck, or the bottleneck without hypernetwork; equal trunks.

    The generated network has twice the teacher's hidden units. The MLP instead has 64 in each of its two layers, so that
    width is not what it lacks.
    """
    run = default_run("in_context", scale, "transformer" if model == "vanilla" else "hypernetwork_transformer")
    choices: dict[str, Any] = {"attention": attention}
    if model == "bottleneck mlp":
        choices |= {"execution": "mlp", "execution_dim": 64}
    return replace(run, model=replace(run.model, **choices))


def list_variants() -> Iterator[tuple[str, str, AttentionName]]:
    """Setting, model and trunk of every comparison, the most important first."""
    for model in MODELS:
        yield "connected", model, "softmax"
    for setting in ("control", "disconnected"):
        for model in ("vanilla", "bottleneck"):
            yield setting, model, "softmax"
    for trunk in TRUNKS[1:]:
        for model in ("vanilla", "bottleneck"):
            yield "connected", model, trunk


def in_context(scale: Scale) -> dict[str, RunConfig]:
    """Every variant with every seed: another teacher, other sequences, other first parameters."""
    runs: dict[str, RunConfig] = {}
    for setting, model, trunk in list_variants():
        run = build_run(scale, model, trunk)
        runs[f"{setting} / {model} / {trunk}"] = replace(run, task=replace(run.task, **SETTINGS[setting]))
    return over_seeds(runs, range(NUM_SEEDS[scale]))


EXPERIMENTS = (
    Experiment(
        name="in-context",
        question="Do transformers recombine modules that they infer in context, with and without a bottleneck?",
        runs=in_context,
        split="ood",
        metric="r2_pooled",
        tables=conclude,
    ),
)
