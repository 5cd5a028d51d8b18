"""The claims of "When can transformers compositionally generalize in-context?", with bounds set before the runs were made:

good        R² of at least 0.9
fails       R² on held-out compositions at least 0.1 below that on trained ones
decodable   R² of ridge regression to z of at least 0.5 on held-out compositions, and 0.1 above the untrained network's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from recombine.foundation import Cell, Column, Table, Value
from recombine.models import HypernetworkTransformerConfig
from recombine.sweeps import Finished, Group, Setting, cell, explain_intervals, mean_cell
from recombine.training import Json, RunDirectory
from recombine_papers.claims import Claim, Lead, Level
from recombine_papers.in_context.measures import measure_fitted_code, track_run
from recombine_papers.measured_claims import Bounded, Exceeds, Gap, Reads
from recombine_papers.scale.decodability import measure_decodability

METRIC = "r2_pooled"
GOOD, GAP, DECODABLE, MARGIN = 0.9, 0.1, 0.5, 0.1
ABSTRACT, TEXT = "arXiv 2407.12275, abstract", "arXiv 2407.12275, text"
Variant = Mapping[str, Setting]

VANILLA: Variant = {"setting": "connected", "model": "vanilla", "trunk": "softmax"}
BOTTLENECK: Variant = {**VANILLA, "model": "bottleneck"}


def list_claims(vanilla: Variant, bottleneck: Variant, control: Mapping[str, Setting], where: str) -> tuple[Claim, ...]:
    """The claims about two models; `control` are the settings that turn shared modules into separate ones.

    Compositions that are held out of the control consist of modules that were never trained, so that only its trained
    compositions can be solved.
    """
    claims: tuple[Claim, ...] = (
        Level(
            text="the vanilla transformer fits trained compositions", source=TEXT, of=vanilla, split="test", low=GOOD
        ),
        Gap(
            text="the vanilla transformer fails on held-out compositions",
            source=ABSTRACT,
            headline=True,
            of=vanilla,
            by=GAP,
        ),
        Level(text="the bottleneck fits trained compositions", source=TEXT, of=bottleneck, split="test", low=GOOD),
        Level(
            text="the bottleneck succeeds on held-out compositions",
            source=ABSTRACT,
            headline=True,
            of=bottleneck,
            low=GOOD,
        ),
        Lead(
            text="the bottleneck is ahead of the vanilla transformer on held-out compositions",
            headline=True,
            source=ABSTRACT,
            better=bottleneck,
            worse=vanilla,
            by=GAP,
        ),
        *claim_decodable("the vanilla transformer", vanilla),
        *claim_decodable("the bottleneck", bottleneck),
        Bounded(
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
    return tuple(replace(claim, where=where) for claim in claims)


def claim_decodable(name: str, variant: Variant) -> tuple[Claim, ...]:
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


def conclude(finished: Finished, device: str) -> list[Table]:
    """The table of variants, and the gradients of the first seed. The runs have their measured numbers."""
    return [tabulate_variants(finished), tabulate_gradients(finished, device)]


def read_decodability(run: RunDirectory, device: str = "auto") -> Json:
    """How well z can be read from each layer; measured once."""
    return measure_decodability(run.path, device=device)


def read_gradients(run: RunDirectory, device: str = "auto") -> list[Json]:
    """Gradients between compositions along training; measured once."""
    return list(track_run(run.path, device=device))


def read_latents(run: RunDirectory, device: str) -> dict[str, float]:
    """How well z can be decoded, and the score with the code fitted to the examples, for models that have a code."""
    decodability = read_decodability(run, device)
    best = decodability["sites"][decodability["best_site"]]
    measured = {
        "z_trained": best["id"],
        "z_held_out": best["ood"],
        "z_untrained": max(site["untrained"]["ood"] for site in decodability["sites"].values()),
    }
    if run.read_json("result.json")["model"] == HypernetworkTransformerConfig.kind:
        measured["fitted_code"] = measure_fitted_code(run.path, device=device)["fitted"]["ood"]
    return measured


def score_splits(group: Group) -> tuple[Cell | None, Cell | None]:
    """Scores on trained and held-out compositions, with their intervals over seeds."""
    return cell(group.score("test", METRIC)), cell(group.score("ood", METRIC))


def tabulate_variants(finished: Finished) -> Table:
    """One row per variant: scores with intervals, and means over seeds of what was read from the networks."""
    quantities = ("fitted_code", "z_trained", "z_held_out", "z_untrained")
    rows: list[tuple[Value, ...]] = []
    for group in finished.groups:
        numbers = [mean_cell(group.measured(name)) for name in quantities]
        minutes = mean_cell([run.result["seconds"] / 60 for run in group.runs])
        rows.append((*finished.show_settings(group.settings), len(group.runs), *score_splits(group), *numbers, minutes))
    return Table(
        title="R² (pooled) of each variant",
        columns=(
            *finished.setting_columns,
            "seeds",
            "R² seen",
            "R² held-out",
            *(name.replace("_", " ") for name in quantities),
            Column(name="minutes", format="fixed", digits=1),
        ),
        rows=tuple(rows),
        note=f"{explain_intervals(finished.groups)}\n"
        "fitted code: R² held out with the code fitted to the examples instead of inferred\n"
        "z: R² of ridge regression to the latent, best layer",
    )


def tabulate_gradients(finished: Finished, device: str) -> Table:
    """Variance of gradients between compositions along the training of the first seed."""
    rows: list[tuple[Value, ...]] = []
    for variant in (VANILLA, BOTTLENECK):
        group = finished.find(**variant)
        points: Sequence[Json] = [] if group is None else read_gradients(group.runs[0].run, device)
        rows += [(*_show(variant), point["step"], point["variance_share"], point["transfer"]) for point in points]
    return Table(
        title="Gradients between compositions",
        columns=("setting", "model", "trunk", "step", "variance share", "transfer"),
        rows=tuple(rows),
        note="share: 0 if all compositions agree, 1 if they have nothing in common\n"
        "transfer: cosine with the gradient of held-out compositions",
    )


def _show(variant: Variant) -> tuple[str, ...]:
    return tuple(str(value).replace("_", " ") for value in variant.values())
