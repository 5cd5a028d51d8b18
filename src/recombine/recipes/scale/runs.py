"""Scale leads to compositional generalization (arXiv 2507.07207): width, training compositions, supports, encodings, models.

The paper's sizes (16 modules, up to 3 active, 300,000 steps at a constant rate) are `--scale paper`. The smaller scales have
8 modules and inputs, 2 inputs a task in training batches, and a cosine at a higher rate: the orderings in minutes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from recombine.models import ModelConfig
from recombine.recipes.experiment import Experiment, over_seeds
from recombine.recipes.scale.tables import compare_seeds, correlate_decodability
from recombine.run import RunConfig, default_run
from recombine.tasks import Hyperteacher
from recombine.tasks.base import Scale
from recombine.tasks.modular.encodings import Encoding
from recombine.tasks.modular.supports import Support

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


def hyperteacher(scale: Scale, model: str | None = None) -> RunConfig:
    """Section 2 of the paper, or smaller: see `Hyperteacher.preset`."""
    return default_run("hyperteacher", scale, model)


def models(scale: Scale) -> dict[str, RunConfig]:
    """Each kind of model."""
    return {kind: hyperteacher(scale, kind) for kind in Hyperteacher.models}


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
