"""When can transformers compositionally generalize in-context? (arXiv 2407.12275): its comparison and three more.

A vanilla transformer is compared with one that has a bottleneck (it infers the task, then a generated network executes it) on

    connected       shared modules, training compositions on a ring
    disconnected    shared modules in two halves that never occur together in training
    control         as many compositions, each with modules of its own

and on the connected support also with a bottleneck without hypernetwork, and with linear and hypernetwork (HYLA) attention in
the trunk. The paper prints no numbers that can be compared with ours, only claims: see `claims`. Sizes and steps of `tiny`
and `small` are our choice for minutes on a CPU; `paper` takes the sizes of the predecessor's generator and a budget of our
choice.

How many compositions must be trained before a transformer infers the code of new ones?

Six modules have 15 pairs. The ring trains six of them. The richer supports add second neighbours on the ring, up to twelve.
In trials with one seed, the bottleneck did not infer the code of a new pair with the bare ring; with twelve pairs it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.attention import AttentionName
from recombine.foundation import Table
from recombine.sweeps import Finished, Record, over_seeds
from recombine.tasks import Scale
from recombine.training import RunConfig, RunDirectory, default_run
from recombine_papers.claims import Fall, Lead
from recombine_papers.experiment import PaperExperiment
from recombine_papers.in_context.claims import (
    BOTTLENECK,
    GAP,
    METRIC,
    VANILLA,
    conclude,
    list_claims,
    read_latents,
    tabulate_variants,
)
from recombine_papers.in_context.figures import draw_in_context, draw_supports

SETTINGS: dict[str, dict[str, Any]] = {
    "connected": {},
    "disconnected": {"support": "disconnected"},
    "control": {"modules": "own"},
}
MODELS = ("vanilla", "bottleneck", "bottleneck_mlp")
TRUNKS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")
NUM_SEEDS: dict[Scale, int] = {"tiny": 1, "small": 3, "paper": 3}


def build_run(scale: Scale, model: str, attention: AttentionName = "softmax") -> RunConfig:
    """The vanilla transformer, the bottleneck, or the bottleneck without hypernetwork; the trunks are equal.

    The generated network has twice the teacher's hidden units. The MLP that replaces it has 64 in each of its two layers, so
    that it does not lack width.
    """
    run = default_run("in_context", scale, "transformer" if model == "vanilla" else "hypernetwork_transformer")
    choices: dict[str, Any] = {"attention": attention}
    if model == "bottleneck_mlp":
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


class InContextExperiment(PaperExperiment):
    """Every variant with every seed: another teacher, other sequences, other initial parameters."""

    name = "in-context"
    core_hours = (0.068, 1.9, 760)
    question = "Do transformers recombine modules that they infer in context, with and without a bottleneck?"
    metric = METRIC
    figures_need_runs = True
    claims = (
        *list_claims(VANILLA, BOTTLENECK, {"setting": "control"}, "6 of 15 pairs trained"),
        Lead(
            text="the bottleneck needs its hypernetwork: against one whose code is an input of a plain network",
            source="our question",
            better=BOTTLENECK,
            worse={**BOTTLENECK, "model": "bottleneck_mlp"},
            by=GAP,
            ours=True,
        ),
        Fall(
            text="modules must be connected in training: the bottleneck on a disconnected support against the ring",
            source="our question: a sister paper has disconnected supports",
            higher=BOTTLENECK,
            lower={**BOTTLENECK, "setting": "disconnected"},
            by=GAP,
            ours=True,
        ),
    )
    known_before = (
        "earlier runs of the same experiment; for the control, which was first judged on held-out compositions, for the "
        "trained compositions and the fitted code of the bottleneck and for its hypernetwork, all results so far."
    )
    differs = "8 inputs and 32 examples, a trunk of 2 layers, 6,000 steps; no code of the paper is public."

    def records(self, scale: Scale) -> Iterator[Record]:
        return over_seeds(self.variants(scale), range(NUM_SEEDS[scale]))

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return read_latents(run, device)

    def variants(self, scale: Scale) -> Iterator[Record]:
        for setting, model, trunk in list_variants():
            run = build_run(scale, model, trunk)
            config = replace(run, task=replace(run.task, **SETTINGS[setting]))
            yield Record(settings={"setting": setting, "model": model, "trunk": trunk}, config=config)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        measured = self.measure_runs(finished, device)
        return [*self.claim_tables(finished, device), *conclude(measured, device)]

    def summarise(self, finished: Finished) -> Table:
        return tabulate_variants(finished)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_in_context(finished, folder)


RING = ("0-1", "1-2", "2-3", "3-4", "4-5", "0-5")
SECOND_NEIGHBOURS = ("0-2", "3-5", "1-3", "0-4", "2-4", "1-5")
MOST = len(RING) + len(SECOND_NEIGHBOURS)
NUM_TRAINED = (MOST, len(RING), 8, 10)
STEPS: dict[Scale, int] = {"tiny": 600, "small": 8_000, "paper": 60_000}


class InContextSupports(PaperExperiment):
    """Vanilla transformer and bottleneck on richer and richer supports, and the control on the richest."""

    name = "in-context-supports"
    core_hours = (0.062, 2.3, 430)
    question = "How many compositions must be trained before a transformer recombines modules in context?"
    metric = METRIC
    claims = (
        *list_claims(
            {"trained": MOST, "model": "vanilla", "modules": "shared"},
            {"trained": MOST, "model": "bottleneck", "modules": "shared"},
            {"modules": "own"},
            "12 of 15 pairs trained",
        ),
        Fall(
            text="the bottleneck needs more than a ring of trained pairs: 12 of 15 against 6",
            source="our question",
            higher={"trained": MOST, "model": "bottleneck", "modules": "shared"},
            lower={"trained": len(RING), "model": "bottleneck", "modules": "shared"},
            by=GAP,
            ours=True,
        ),
    )
    known_before = (
        "one seed of both models with 12 pairs, and of the bottleneck with 6; for the control, which was first judged on "
        "held-out compositions, and for the trained compositions and the fitted code of the bottleneck, all results."
    )
    differs = "12 of the 15 pairs are trained instead of the 6 of the ring; sizes as in `in-context`, 8,000 steps."

    def records(self, scale: Scale) -> Iterator[Record]:
        return over_seeds(self.variants(scale), range(NUM_SEEDS[scale]))

    def variants(self, scale: Scale) -> Iterator[Record]:
        ends, between = NUM_TRAINED[:2], NUM_TRAINED[2:]
        for modules, numbers in (("shared", ends), ("own", (MOST,)), ("shared", between)):
            for trained in numbers:
                for model in ("bottleneck", "vanilla"):
                    yield build_record(scale, trained, model, modules)

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return read_latents(run, device)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        measured = self.measure_runs(finished, device)
        return [*self.claim_tables(finished, device), *conclude(measured, device)]

    def summarise(self, finished: Finished) -> Table:
        return tabulate_variants(finished)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_supports(self.measure_runs(finished, "auto"), folder)


def build_record(scale: Scale, trained: int, model: str, modules: str) -> Record:
    """A model on the ring with so many pairs in all; `modules` are shared by compositions, or each has its own."""
    run = build_run(scale, model)
    pairs = (*RING, *SECOND_NEIGHBOURS)[:trained]
    choices: dict[str, Any] = {"support": "custom", "combinations": " ".join(pairs), "modules": modules}
    task = replace(run.task, **choices)
    return Record(
        settings={"trained": trained, "model": model, "modules": modules},
        config=replace(run, task=task, training=replace(run.training, steps=STEPS[scale])),
    )
