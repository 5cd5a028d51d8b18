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

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from recombine.layers.attention import AttentionName
from recombine.models import HypernetworkTransformerConfig, ModelConfig, TransformerConfig
from recombine.recipes.experiment import Experiment, Scale, over_seeds
from recombine.recipes.in_context_claims import conclude
from recombine.run import RunConfig
from recombine.tasks import InContext
from recombine.train import TrainingConfig

SETTINGS: dict[str, dict[str, Any]] = {
    "connected": {},
    "disconnected": {"support": "disconnected"},
    "control": {"modules": "own"},
}
TRUNKS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")
NUM_SEEDS: dict[Scale, int] = {"tiny": 1, "small": 3, "paper": 3}


def build_task(scale: Scale) -> InContext:
    if scale == "paper":
        return InContext(num_examples=64, num_queries=16, input_size=16, hidden_size=16)
    return InContext(num_examples=32, num_queries=8, input_size=8, hidden_size=16)


def build_models(scale: Scale, attention: AttentionName = "softmax") -> dict[str, ModelConfig]:
    """The vanilla transformer, the bottleneck, and the bottleneck without hypernetwork; equal trunks.

    The generated network has twice the teacher's hidden units. The MLP instead has 64 in each of its two layers, so that
    width is not what it lacks.
    """
    layers, width = {"tiny": (2, 48), "small": (2, 64), "paper": (6, 128)}[scale]
    sizes: dict[str, Any] = {
        "attention": attention,
        "num_layers": layers,
        "embedding_dim": width,
        "kqv_dim": width,
        "mlp_dim": 2 * width,
        "num_heads": 4,
        "position": "none",
    }
    return {
        "vanilla": TransformerConfig(**sizes),
        "bottleneck": HypernetworkTransformerConfig(**sizes, execution_dim=2 * build_task(scale).hidden_size),
        "bottleneck mlp": HypernetworkTransformerConfig(**sizes, execution="mlp", execution_dim=64),
    }


def build_run(scale: Scale, model: ModelConfig) -> RunConfig:
    return RunConfig(
        task=build_task(scale),
        model=model,
        training=TrainingConfig(
            steps={"tiny": 600, "small": 6_000, "paper": 100_000}[scale],
            batch_size=128 if scale == "paper" else 64,
            learning_rate=1e-3 if scale == "paper" else 2e-3,
            weight_decay=0.01,
            warmup_steps=100,
        ),
    )


def defaults(scale: Scale) -> dict[str, RunConfig]:
    models = build_models(scale)
    return {model.kind: build_run(scale, model) for model in (models["vanilla"], models["bottleneck"])}


def list_variants(scale: Scale) -> Iterator[tuple[str, str, AttentionName]]:
    """Setting, model and trunk of every comparison, the most important first."""
    for model in build_models(scale):
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
    for setting, model, trunk in list_variants(scale):
        run = build_run(scale, build_models(scale, trunk)[model])
        runs[f"{setting} / {model} / {trunk}"] = replace(run, task=replace(run.task, **SETTINGS[setting]))
    return over_seeds(runs, range(NUM_SEEDS[scale]))


DEFAULTS: dict[str, Callable[[Scale], dict[str, RunConfig]]] = {"in_context": defaults}

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
