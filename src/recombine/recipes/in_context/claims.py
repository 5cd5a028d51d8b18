"""The claims of "When can transformers compositionally generalize in-context?", each held against runs: seen or not seen.

A claim is *seen* if it holds for every seed, with bounds set before the runs were made:

    good        R² of at least 0.9
    fails       R² on held-out combinations at least 0.1 below that on trained ones
    decodable   R² of ridge regression to z of at least 0.5 on held-out combinations, and 0.1 above the untrained network's

A variant is "setting / model / trunk", as the recipe writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from recombine.models import HypernetworkTransformerConfig
from recombine.probe.measures.decodability import measure_decodability
from recombine.probe.measures.fitted_code import measure_fitted_code
from recombine.probe.measures.gradients import track_run
from recombine.recipes.experiment import Runs, group_seeds
from recombine.store import RunDirectory
from recombine.tasks.base import Audit

METRIC = "r2_pooled"
GOOD, GAP, DECODABLE, MARGIN = 0.9, 0.1, 0.5, 0.1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run came to."""

    id: float
    ood: float
    decodable_id: float
    decodable_ood: float
    untrained_ood: float  # the best of the untrained network's layers
    fitted_ood: float | None  # with the code fitted to the examples, of models that have a code
    minutes: float

    @property
    def gap(self) -> float:
        return self.id - self.ood


Outcomes = Mapping[str, list[Outcome]]  # variant -> one a seed


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, the variants it is about, and when a seed shows it."""

    text: str
    variants: tuple[str, ...]
    holds: Callable[..., bool]
    show: Callable[..., tuple[float, ...]]
    shown: str


VANILLA, BOTTLENECK = "connected / vanilla / softmax", "connected / bottleneck / softmax"
CONTROL_VANILLA, CONTROL_BOTTLENECK = "control / vanilla / softmax", "control / bottleneck / softmax"

CLAIMS = (
    Claim(
        text="1. the vanilla transformer is good on trained combinations",
        variants=(VANILLA,),
        holds=lambda vanilla: vanilla.id >= GOOD,
        show=lambda vanilla: (vanilla.id,),
        shown="R² trained",
    ),
    Claim(
        text="2. and fails on held-out ones",
        variants=(VANILLA,),
        holds=lambda vanilla: vanilla.gap >= GAP,
        show=lambda vanilla: (vanilla.id, vanilla.ood),
        shown="R² trained, held out",
    ),
    Claim(
        text="3. the bottleneck succeeds on held-out ones",
        variants=(BOTTLENECK, VANILLA),
        holds=lambda bottleneck, vanilla: bottleneck.ood >= GOOD and bottleneck.ood > vanilla.ood,
        show=lambda bottleneck, vanilla: (bottleneck.ood, vanilla.ood),
        shown="R² held out, bottleneck and vanilla",
    ),
    Claim(
        text="4. the latent is decodable on held-out ones from the vanilla transformer",
        variants=(VANILLA,),
        holds=lambda vanilla: is_decodable(vanilla),
        show=lambda vanilla: (vanilla.decodable_ood, vanilla.untrained_ood),
        shown="R² of z held out, trained and untrained network",
    ),
    Claim(
        text="5. and from the bottleneck",
        variants=(BOTTLENECK,),
        holds=lambda bottleneck: is_decodable(bottleneck),
        show=lambda bottleneck: (bottleneck.decodable_ood, bottleneck.untrained_ood),
        shown="R² of z held out, trained and untrained network",
    ),
    Claim(
        text="6. the control tells structure from capacity: without shared modules the bottleneck loses its lead",
        variants=(BOTTLENECK, VANILLA, CONTROL_BOTTLENECK, CONTROL_VANILLA),
        holds=lambda bottleneck, vanilla, control, control_vanilla: (
            bottleneck.ood - vanilla.ood >= GAP and control.ood - control_vanilla.ood < GAP / 2
        ),
        show=lambda bottleneck, vanilla, control, control_vanilla: (
            bottleneck.ood - vanilla.ood,
            control.ood - control_vanilla.ood,
        ),
        shown="lead of the bottleneck held out, with shared modules and in the control",
    ),
)


def is_decodable(outcome: Outcome) -> bool:
    return outcome.decodable_ood >= DECODABLE and outcome.decodable_ood >= outcome.untrained_ood + MARGIN


def conclude(runs: Runs, device: str = "auto") -> list[Audit]:
    """The table of variants, the table of claims, and the gradients of the first seed."""
    outcomes = group_seeds({label: read_outcome(run, device) for label, run in runs.items()})
    return [tabulate_variants(outcomes), tabulate_claims(outcomes), tabulate_gradients(runs, device)]


def read_outcome(run: RunDirectory, device: str) -> Outcome:
    result = run.read_json("result.json")
    found = measure_decodability(run.path, device=device)
    best = found["sites"][found["best_site"]]
    has_code = result["model"] == HypernetworkTransformerConfig.kind
    return Outcome(
        id=result["scores"]["test"][METRIC]["value"],
        ood=result["scores"]["ood"][METRIC]["value"],
        decodable_id=best["id"],
        decodable_ood=best["ood"],
        untrained_ood=max(site["untrained"]["ood"] for site in found["sites"].values()),
        fitted_ood=measure_fitted_code(run.path, device=device)["fitted"]["ood"] if has_code else None,
        minutes=result["seconds"] / 60,
    )


def tabulate_variants(outcomes: Outcomes) -> Audit:
    names = {
        "trained": "id",
        "held out": "ood",
        "fitted code": "fitted_ood",
        "z trained": "decodable_id",
        "z held out": "decodable_ood",
        "z untrained": "untrained_ood",
    }
    rows: list[tuple[str | int | float, ...]] = []
    for variant, seeds in outcomes.items():
        numbers = [format_seeds([getattr(seed, name) for seed in seeds]) for name in names.values()]
        rows.append((variant, *numbers, len(seeds), f"{mean(seed.minutes for seed in seeds):.1f}"))
    note = (
        "means over seeds, ± half the range; fitted code: held out, the code fitted to the examples instead of inferred; "
        "z: R² of ridge regression to the latent, best layer"
    )
    columns = ("", *names, "seeds", "minutes")
    return Audit(title="R² (pooled) by setting, model, trunk", columns=columns, rows=tuple(rows), note=note)


def tabulate_claims(outcomes: Outcomes) -> Audit:
    rows = []
    for claim in CLAIMS:
        if not all(variant in outcomes for variant in claim.variants):
            continue
        seeds = list(zip(*(outcomes[variant] for variant in claim.variants), strict=False))
        held = [claim.holds(*seed) for seed in seeds]
        verdict = "seen" if all(held) else f"not seen ({sum(held)} of {len(held)} seeds)"
        columns = zip(*(claim.show(*seed) for seed in seeds), strict=True)
        rows.append((claim.text, verdict, "   ".join(format_seeds(list(each)) for each in columns), claim.shown))
    return Audit(title="claims of the paper", columns=("claim", "verdict", "numbers", "of"), rows=tuple(rows))


def tabulate_gradients(runs: Runs, device: str) -> Audit:
    """Variance of gradients between combinations along the training of the first seed."""
    variants = group_seeds(runs)
    tracked = {
        variant: track_run(variants[variant][0].path, device=device)
        for variant in (VANILLA, BOTTLENECK)
        if variant in variants
    }
    rows: list[tuple[str | int | float, ...]] = []
    for label, points in tracked.items():
        rows += [(label, point["step"], point["variance_share"], point["transfer"]) for point in points]
    note = "share: 0 if combinations agree, 1 if each goes its own way; transfer: cosine with the held-out gradient"
    columns = ("", "step", "variance share", "transfer")
    return Audit(title="gradients between combinations", columns=columns, rows=tuple(rows), note=note)


def format_seeds(values: Sequence[float | None]) -> str:
    """The mean, and half the range where there is more than one value; nothing where there is none to give."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    spread = f" ± {(max(numbers) - min(numbers)) / 2:.3f}" if len(numbers) > 1 else ""
    return f"{mean(numbers):.3f}{spread}"
