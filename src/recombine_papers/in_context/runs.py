"""When can transformers compositionally generalize in-context? (arXiv 2407.12275): its comparison and three more.

A vanilla transformer is compared with one that has a bottleneck (it infers the task, then a generated network executes it) on

    connected       shared modules, training compositions on a ring
    disconnected    shared modules in two halves that never occur together in training
    control         as many compositions, each with its own modules

and on the connected support also with a bottleneck whose weights an MLP predicts from the code, with one without hypernetwork,
with a vanilla transformer of twice the width, and with linear and hypernetwork (HYLA) attention in the trunk. The paper prints
claims but no numbers that can be compared with ours. Their bounds were set before the runs:

    good        R² of at least 0.9
    fails       R² on held-out compositions at least 0.1 below that on trained ones
    decodable   R² of ridge regression to z of at least 0.5 on held-out compositions, and 0.1 above the untrained network's

Sizes and steps of `tiny` and `small` are our choice for minutes on a CPU; `paper` has the sizes of the predecessor's generator
and a budget of our choice.

`in-context-supports`: how many compositions must be trained before a transformer infers the code of new ones? Six modules have
15 pairs. The ring trains six of them. The richer supports add second neighbours on the ring, up to twelve. In trials with one
seed, the bottleneck did not infer the code of a new pair with the bare ring; with twelve pairs it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.attention import AttentionName
from recombine.foundation import Column, Table, Value
from recombine.sweeps import Record, mean_cell
from recombine.tasks import Scale
from recombine.training import RunConfig, RunDirectory, default_run
from recombine_papers.base import MINUTES, Finished, Group, cell, explain_intervals, tabulate_groups
from recombine_papers.claims import Claim, Difference, Exceeds, Excess, Lead, Level, Reads, Settings
from recombine_papers.experiment import SeededExperiment
from recombine_papers.in_context.figures import draw_in_context, draw_supports
from recombine_papers.in_context.measures import METRIC, read_latents

GOOD, GAP, DECODABLE, MARGIN = 0.9, 0.1, 0.5, 0.1
BOTTLENECK_LEADS = "the bottleneck is ahead of the vanilla transformer on held-out compositions"
TRUNKS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")
ABSTRACT, TEXT = "arXiv 2407.12275, abstract", "arXiv 2407.12275, text"
QUANTITIES = ("fitted_code", "z_trained", "z_held_out", "z_untrained")

VANILLA: Settings = {"setting": "connected", "model": "vanilla", "trunk": "softmax"}
BOTTLENECK: Settings = {**VANILLA, "model": "bottleneck"}


CURVES: dict[str, Settings] = {
    "vanilla": VANILLA,
    "bottleneck": BOTTLENECK,
    "bottleneck, no hypernetwork": {**BOTTLENECK, "model": "bottleneck_mlp"},
    "vanilla, HYLA": {**VANILLA, "trunk": "hyla"},
}


def list_claims(vanilla: Settings, bottleneck: Settings, control: Settings, where: str) -> tuple[Claim, ...]:
    """The claims about two models; `control` are the settings that turn shared modules into separate ones.

    Compositions that are held out of the control consist of modules that were never trained, so that only its trained
    compositions can be solved.
    """
    claims: tuple[Claim, ...] = (
        Level(
            text="the vanilla transformer fits trained compositions", source=TEXT, of=vanilla, split="test", low=GOOD
        ),
        Excess(
            text="the vanilla transformer fails on held-out compositions where the bottleneck does not: it loses more",
            source=ABSTRACT,
            better=bottleneck,
            worse=vanilla,
            by=GAP,
            known=True,
        ),
        Level(text="the bottleneck fits trained compositions", source=TEXT, of=bottleneck, split="test", low=GOOD),
        Level(
            text="the bottleneck succeeds on held-out compositions",
            source=ABSTRACT,
            of=bottleneck,
            low=GOOD,
        ),
        Lead(
            text=BOTTLENECK_LEADS,
            source=ABSTRACT,
            better=bottleneck,
            worse=vanilla,
            by=GAP,
        ),
        *claim_decodable("the vanilla transformer", vanilla),
        *claim_decodable("the bottleneck", bottleneck),
        Difference(
            text="without shared modules the bottleneck solves trained compositions no better than the vanilla transformer",
            source=f"{TEXT}: unstructured control task",
            first={**bottleneck, **control},
            second={**vanilla, **control},
            split="test",
            high=GAP / 2,
        ),
        Reads(
            text="the bottleneck executes held-out compositions if the code is fitted to the examples (R²)",
            source="our question: the predecessor of the paper fits the code",
            of=bottleneck,
            quantity="fitted_code",
            low=GOOD,
            ours=True,
        ),
    )
    trunks = (
        Lead(
            text=BOTTLENECK_LEADS,
            source="our question",
            where=f"{where}, {trunk} attention",
            better={**bottleneck, "trunk": trunk},
            worse={**vanilla, "trunk": trunk},
            by=GAP,
            ours=True,
        )
        for trunk in TRUNKS[1:]
    )
    return (*(replace(claim, where=where) for claim in (*claims, *claim_ablations(bottleneck))), *trunks)


def claim_ablations(bottleneck: Settings) -> tuple[Claim, ...]:
    """What of the bottleneck matters: that it has a hypernetwork, that this is linear, or the number of parameters."""
    others = {
        "bottleneck_mlp": "the bottleneck needs its hypernetwork: against one whose code is an input of a plain network",
        "bottleneck_mlp_weights": "the hypernetwork must be linear: against weights that an MLP predicts from the code",
        "vanilla_wide": "the bottleneck is ahead of a vanilla transformer of twice the width",
    }
    weaker = {model: {**bottleneck, "model": model} for model in others}
    leads = (
        Lead(text=text, source="our question", better=bottleneck, worse=weaker[model], by=GAP, ours=True)
        for model, text in others.items()
    )
    fits = Level(
        text="the bottleneck whose weights an MLP predicts fits trained compositions",
        source="condition of a claim above",
        of=weaker["bottleneck_mlp_weights"],
        split="test",
        low=GOOD,
        ours=True,
        known=False,
    )
    return (*leads, fits)


def claim_decodable(name: str, variant: Settings) -> tuple[Claim, ...]:
    """The latent can be decoded on held-out compositions, and better than before training."""
    return (
        Reads(
            text=f"the latent is decodable from {name} on held-out compositions",
            source=f"{TEXT}: linear decoding",
            of=variant,
            quantity="z_held_out",
            low=DECODABLE,
        ),
        Exceeds(
            text=f"decodability from {name} is higher than before training",
            source="our control",
            of=variant,
            quantity="z_held_out",
            over="z_untrained",
            by=MARGIN,
            ours=True,
        ),
    )


def tabulate_variants(finished: Finished) -> Table:
    """One row per variant: scores with intervals, and means over seeds of what was read from the networks."""

    def list_cells(group: Group) -> list[Value]:
        scores = [cell(group.score(split, METRIC)) for split in ("test", "ood")]
        numbers = [mean_cell(group.measured(name)) for name in QUANTITIES]
        return [len(group.runs), *scores, *numbers, mean_cell([run.result["seconds"] / 60 for run in group.runs])]

    note = (
        f"{explain_intervals(finished.groups)}\n"
        "fitted code: R² held out with the code fitted to the examples instead of inferred\n"
        "z: R² of ridge regression to the latent, best layer"
    )
    columns: tuple[str | Column, ...] = (
        "seeds",
        "R² seen",
        "R² held-out",
        *(name.replace("_", " ") for name in QUANTITIES),
        MINUTES,
    )
    return tabulate_groups(finished, "R² (pooled) of each variant", columns, list_cells, note)


SETTINGS: dict[str, dict[str, Any]] = {
    "connected": {},
    "disconnected": {"support": "disconnected"},
    "control": {"modules": "own"},
}
MODELS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "bottleneck": {},
    "bottleneck_mlp": {"execution": "mlp", "execution_dim": 64},
    "bottleneck_mlp_weights": {"execution": "mlp_hypernetwork"},
    "vanilla_wide": {},
}


def build_run(scale: Scale, model: str, attention: AttentionName = "softmax") -> RunConfig:
    """One of the models; all have the same trunk but for the wide one.

    The generated network has twice the teacher's hidden units. The MLP that replaces it has 64 in each of its two layers, so
    that it does not lack width.
    """
    run = default_run("in_context", scale, "transformer" if "vanilla" in model else "hypernetwork_transformer")
    choices = {"attention": attention, **MODELS[model]}
    if model == "vanilla_wide":
        choices |= {name: 2 * getattr(run.model, name) for name in ("embedding_dim", "kqv_dim", "mlp_dim")}
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


class InContextVariants(SeededExperiment):
    """Every seed has another teacher, other sequences and other initial parameters."""

    metric = METRIC
    quantities = QUANTITIES

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        return read_latents(run, device)

    def summarise(self, finished: Finished) -> Table:
        return tabulate_variants(finished)


class InContextExperiment(InContextVariants):
    """Settings, models and trunks."""

    name = "in-context"
    core_hours = (0.08, 2.3, 900)  # 11 of 13 variants measured, the rest by their number
    question = "Do transformers recombine modules that they infer in context, with and without a bottleneck?"
    figures_need_runs = True
    claims = (
        *list_claims(VANILLA, BOTTLENECK, {"setting": "control"}, "6 of 15 pairs trained"),
        Lead(
            text="modules must be connected in training: the bottleneck on a disconnected support against the ring",
            source="our question: a sister paper has disconnected supports",
            better=BOTTLENECK,
            worse={**BOTTLENECK, "setting": "disconnected"},
            by=GAP,
            ours=True,
            paired=False,
        ),
    )
    known_before = (
        "earlier runs of the same experiment; for the control, which was first judged on held-out compositions, for the "
        "trained compositions and the fitted code of the bottleneck and for its hypernetwork, all results so far."
    )
    differs = "8 inputs and 32 examples, a trunk of 2 layers, 6,000 steps; no code of the paper is public."

    def variants(self, scale: Scale) -> Iterator[Record]:
        for setting, model, trunk in list_variants():
            run = build_run(scale, model, trunk)
            config = replace(run, task=replace(run.task, **SETTINGS[setting]))
            yield Record(settings={"setting": setting, "model": model, "trunk": trunk}, config=config)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_in_context(finished, folder, CURVES)


RING = ("0-1", "1-2", "2-3", "3-4", "4-5", "0-5")
SECOND_NEIGHBOURS = ("0-2", "3-5", "1-3", "0-4", "2-4", "1-5")
NUM_RICHEST = len(RING) + len(SECOND_NEIGHBOURS)
RICHEST: Settings = {"trained": NUM_RICHEST, "model": "bottleneck", "modules": "shared", "trunk": "softmax"}
NUM_TRAINED = (NUM_RICHEST, len(RING), 8, 10)
STEPS: dict[Scale, int] = {"tiny": 600, "small": 8_000, "paper": 60_000}


class InContextSupports(InContextVariants):
    """Vanilla transformer and bottleneck on richer and richer supports; on the richest also the control and the ablations."""

    name = "in-context-supports"
    core_hours = (0.11, 3.9, 730)  # 10 of 17 variants measured, the rest by their number
    question = "How many compositions must be trained before a transformer recombines modules in context?"
    claims = (
        *list_claims(
            {**RICHEST, "model": "vanilla"},
            RICHEST,
            {"modules": "own"},
            "12 of 15 pairs trained",
        ),
        Lead(
            text="the bottleneck needs more than a ring of trained pairs: 12 of 15 against 6",
            source="our question",
            better=RICHEST,
            worse={**RICHEST, "trained": len(RING)},
            by=GAP,
            ours=True,
            paired=False,
        ),
    )
    known_before = (
        "one seed of both models with 12 pairs, and of the bottleneck with 6; for the control, which was first judged on "
        "held-out compositions, and for the trained compositions and the fitted code of the bottleneck, all results."
    )
    differs = "12 of the 15 pairs are trained instead of the 6 of the ring; sizes as in `in-context`, 8,000 steps."

    def variants(self, scale: Scale) -> Iterator[Record]:
        ends, between = NUM_TRAINED[:2], NUM_TRAINED[2:]
        for modules, numbers in (("shared", ends), ("own", (NUM_RICHEST,)), ("shared", between)):
            for trained in numbers:
                for model in ("bottleneck", "vanilla"):
                    yield build_record(scale, trained, model, modules)
        for model in list(MODELS)[2:]:
            yield build_record(scale, NUM_RICHEST, model, "shared")
        for trunk in TRUNKS[1:]:
            for model in ("bottleneck", "vanilla"):
                yield build_record(scale, NUM_RICHEST, model, "shared", trunk)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_supports(self.measure_runs(finished, "auto"), folder)


def build_record(scale: Scale, trained: int, model: str, modules: str, trunk: AttentionName = "softmax") -> Record:
    """A model on the ring with so many pairs in all; `modules` are shared by compositions or not."""
    run = build_run(scale, model, trunk)
    pairs = (*RING, *SECOND_NEIGHBOURS)[:trained]
    choices: dict[str, Any] = {"support": "custom", "combinations": " ".join(pairs), "modules": modules}
    task = replace(run.task, **choices)
    return Record(
        settings={"trained": trained, "model": model, "modules": modules, "trunk": trunk},
        config=replace(run, task=task, training=replace(run.training, steps=STEPS[scale])),
    )
