"""Scale leads to compositional generalization (arXiv 2507.07207): width, training compositions, supports, encodings, models.

The paper's sizes (16 modules, up to 3 active, 300,000 steps at a constant rate) are `--scale paper`. The smaller scales have
8 modules and inputs, 2 inputs a task in training batches, and a cosine at a higher rate: the orderings in minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from recombine.models import HypernetworkConfig, MLPConfig, ModelConfig, TaskTransformerConfig
from recombine.recipes.experiment import Experiment, Scale, over_seeds
from recombine.recipes.scale_tables import compare_seeds, correlate_decodability
from recombine.run import RunConfig
from recombine.tasks import Hyperteacher
from recombine.tasks.encodings import Encoding
from recombine.tasks.supports import Support
from recombine.train import TrainingConfig

SEEDS: dict[Scale, range] = {"tiny": range(1), "small": range(3), "paper": range(3)}
WIDTHS: dict[Scale, tuple[int, ...]] = {
    "tiny": (16, 64, 256),
    "small": (16, 32, 64, 128, 256, 512),
    "paper": (128, 256, 512, 1024, 2048),
}
HELD_OUT: dict[Scale, tuple[float, ...]] = {
    "tiny": (0.85, 0.5, 0.125),
    "small": (0.85, 0.75, 0.5, 0.25, 0.125),
    "paper": (0.97, 0.9, 0.75, 0.5, 0.25, 0.125),
}


def hyperteacher(scale: Scale) -> RunConfig:
    """Section 2 of the paper; smaller scales as the docstring of this file says."""
    if scale == "paper":
        return RunConfig(
            task=Hyperteacher(),
            model=MLPConfig(num_layers=4, hidden_dim=1024),
            training=TrainingConfig(
                steps=300_000, learning_rate=3e-4, weight_decay=3e-3, warmup_steps=0, schedule="constant"
            ),
        )
    return RunConfig(
        task=Hyperteacher(num_modules=8, x_dim=8, teacher_dim=8, y_dim=8, train_samples=2),
        model=MLPConfig(num_layers=2, hidden_dim=128),
        training=TrainingConfig(
            steps={"tiny": 2_000, "small": 4_000}[scale], learning_rate=3e-3, weight_decay=3e-3, warmup_steps=100
        ),
    )


def models(scale: Scale) -> dict[str, RunConfig]:
    """Each kind of model; the transformer, which has positions, sees as many inputs in training as later."""
    base = hyperteacher(scale)
    if scale == "paper":
        generated, transformer = HypernetworkConfig(), TaskTransformerConfig()
        return {
            "mlp": base,
            "hypernetwork": replace(base, model=generated),
            "task_transformer": replace(base, model=transformer),
        }
    transformer = TaskTransformerConfig(num_layers=2, embedding_dim=64, kqv_dim=64, mlp_dim=256)
    training = replace(base.training, learning_rate=1e-3)
    return {
        "mlp": base,
        "hypernetwork": replace(base, model=HypernetworkConfig(hidden_dim=64)),
        "task_transformer": change(replace(base, model=transformer, training=training), train_samples=None),
    }


DEFAULTS: dict[str, Callable[[Scale], dict[str, RunConfig]]] = {"hyperteacher": models}


def change(run: RunConfig, model: dict[str, Any] | None = None, **task: Any) -> RunConfig:
    """The run with other choices of its model or its task."""
    changed: ModelConfig = replace(run.model, **(model or {}))
    return replace(run, task=replace(run.task, **task), model=changed)


def over_widths(scale: Scale) -> dict[str, RunConfig]:
    base = hyperteacher(scale)
    return over_seeds({f"width {width}": change(base, {"hidden_dim": width}) for width in WIDTHS[scale]}, SEEDS[scale])


def over_compositions(scale: Scale) -> dict[str, RunConfig]:
    base = hyperteacher(scale)
    runs = {each: change(base, held_out=each) for each in HELD_OUT[scale]}
    return over_seeds({f"{len(run.task.split.train)} compositions": run for run in runs.values()}, SEEDS[scale])


def over_supports(scale: Scale) -> dict[str, RunConfig]:
    """Each support, and a random one with no more training compositions than the disconnected one has."""
    base = hyperteacher(scale)
    runs = {support: change(base, support=support) for support in get_args(Support)}
    split = runs["disconnected"].task.split
    runs["random, as few as disconnected"] = change(base, held_out=len(split.ood) / len(split.train + split.ood))
    return over_seeds(runs, SEEDS[scale])


def over_encodings(scale: Scale) -> dict[str, RunConfig]:
    base = hyperteacher(scale)
    return over_seeds({encoding: change(base, encoding=encoding) for encoding in get_args(Encoding)}, SEEDS[scale])


def over_models(scale: Scale) -> dict[str, RunConfig]:
    return over_seeds(models(scale), SEEDS[scale])


def all_runs(scale: Scale) -> dict[str, RunConfig]:
    """The runs of the curves and of the supports; those that are the same are trained once."""
    return over_widths(scale) | over_compositions(scale) | over_supports(scale)


EXPERIMENTS = (
    Experiment(
        name="scale-width",
        question="Do wider networks recombine modules better?",
        runs=over_widths,
        split="ood",
        metric="r2_pooled",
        tables=compare_seeds,
    ),
    Experiment(
        name="scale-compositions",
        question="Do networks trained on more compositions recombine modules better?",
        runs=over_compositions,
        split="ood",
        metric="r2_pooled",
        tables=compare_seeds,
    ),
    Experiment(
        name="scale-supports",
        question="Which training compositions let a network recombine modules?",
        runs=over_supports,
        split="ood",
        metric="r2_pooled",
        tables=compare_seeds,
    ),
    Experiment(
        name="scale-encodings",
        question="Does it matter how a network is told its task?",
        runs=over_encodings,
        split="ood",
        metric="r2_pooled",
        tables=compare_seeds,
    ),
    Experiment(
        name="scale-models",
        question="Which kind of network recombines modules?",
        runs=over_models,
        split="ood",
        metric="r2_pooled",
        tables=compare_seeds,
    ),
    Experiment(
        name="scale-decodability",
        question="Do networks that recombine modules show them in their hidden layers?",
        runs=all_runs,
        split="ood",
        metric="r2_pooled",
        tables=correlate_decodability,
    ),
)
