"""The claims of "When can transformers compositionally generalize in-context?", each with a verdict.

A claim is *seen* if it holds for every seed, *seen in part* if it holds for some, with bounds set before the runs were made:

    good        R² of at least 0.9
    fails       R² on held-out combinations at least 0.1 below that on trained ones
    decodable   R² of ridge regression to z of at least 0.5 on held-out combinations, and 0.1 above the untrained network's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recombine.models import HypernetworkTransformerConfig
from recombine.probe.measures.decodability import measure_decodability
from recombine.probe.measures.fitted_code import measure_fitted_code
from recombine.probe.measures.gradients import track_run
from recombine.recipes.claims import Verdict
from recombine.recipes.comparison import cell, mean_cell, spread
from recombine.recipes.experiment import Finished, Group, Setting
from recombine.seeds import score_seeds
from recombine.store import Json, RunDirectory
from recombine.tables import Cell, Column, Table, Value

METRIC = "r2_pooled"
GOOD, GAP, DECODABLE, MARGIN = 0.9, 0.1, 0.5, 0.1
Variant = Mapping[str, Setting]  # setting, model and trunk


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The numbers of one run that the claims are about."""

    id: float
    ood: float
    decodable_id: float
    decodable_ood: float
    untrained_ood: float  # the best of the untrained network's layers
    fitted_ood: float | None  # with the code fitted to the examples, for models that have a code
    minutes: float

    @property
    def gap(self) -> float:
        return self.id - self.ood


Outcomes = Sequence[tuple[Variant, Sequence[Outcome]]]  # one outcome per seed


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, the variants it is about, and when a seed shows it."""

    text: str
    variants: tuple[Variant, ...]
    holds: Callable[..., bool]
    show: Callable[..., dict[str, float]]


VANILLA: Variant = {"setting": "connected", "model": "vanilla", "trunk": "softmax"}
BOTTLENECK: Variant = {**VANILLA, "model": "bottleneck"}
CONTROL_VANILLA: Variant = {**VANILLA, "setting": "control"}
CONTROL_BOTTLENECK: Variant = {**BOTTLENECK, "setting": "control"}

CLAIMS = (
    Claim(
        text="1. the vanilla transformer is good on trained combinations",
        variants=(VANILLA,),
        holds=lambda vanilla: vanilla.id >= GOOD,
        show=lambda vanilla: {"R² trained": vanilla.id},
    ),
    Claim(
        text="2. and fails on held-out ones",
        variants=(VANILLA,),
        holds=lambda vanilla: vanilla.gap >= GAP,
        show=lambda vanilla: {"R² trained": vanilla.id, "R² held out": vanilla.ood},
    ),
    Claim(
        text="3. the bottleneck succeeds on held-out ones",
        variants=(BOTTLENECK, VANILLA),
        holds=lambda bottleneck, vanilla: bottleneck.ood >= GOOD and bottleneck.ood > vanilla.ood,
        show=lambda bottleneck, vanilla: {
            "R² held out, bottleneck": bottleneck.ood,
            "R² held out, vanilla": vanilla.ood,
        },
    ),
    Claim(
        text="4. the latent is decodable on held-out ones from the vanilla transformer",
        variants=(VANILLA,),
        holds=lambda vanilla: is_decodable(vanilla),
        show=lambda vanilla: show_decodability(vanilla),
    ),
    Claim(
        text="5. and from the bottleneck",
        variants=(BOTTLENECK,),
        holds=lambda bottleneck: is_decodable(bottleneck),
        show=lambda bottleneck: show_decodability(bottleneck),
    ),
    Claim(
        text="6. the control separates structure from capacity: without shared modules the bottleneck loses its lead",
        variants=(BOTTLENECK, VANILLA, CONTROL_BOTTLENECK, CONTROL_VANILLA),
        holds=lambda bottleneck, vanilla, control, control_vanilla: (
            bottleneck.ood - vanilla.ood >= GAP and control.ood - control_vanilla.ood < GAP / 2
        ),
        show=lambda bottleneck, vanilla, control, control_vanilla: {
            "lead of the bottleneck": bottleneck.ood - vanilla.ood,
            "lead in the control": control.ood - control_vanilla.ood,
        },
    ),
)


def is_decodable(outcome: Outcome) -> bool:
    return outcome.decodable_ood >= DECODABLE and outcome.decodable_ood >= outcome.untrained_ood + MARGIN


def show_decodability(outcome: Outcome) -> dict[str, float]:
    return {"R² of z held out": outcome.decodable_ood, "untrained": outcome.untrained_ood}


def conclude(finished: Finished, device: str) -> list[Table]:
    """The table of variants, the table of claims, and the gradients of the first seed."""
    measured = finished.measure(lambda run: read_outcome(run, device))
    groups = finished.groups
    outcomes = [(group.settings, [measured[run.run.path] for run in group.runs]) for group in groups]
    return [
        tabulate_variants(outcomes, [score_splits(group) for group in groups]),
        tabulate_claims(outcomes),
        tabulate_gradients(finished, device),
    ]


def read_decodability(run: RunDirectory, device: str = "auto") -> Json:
    """How well z can be read from each layer; measured once."""
    return measure_decodability(run.path, device=device)


def read_gradients(run: RunDirectory, device: str = "auto") -> list[Json]:
    """Gradients between combinations along training; measured once."""
    return list(track_run(run.path, device=device))


def read_outcome(run: RunDirectory, device: str) -> Outcome:
    result = run.read_json("result.json")
    decodability = read_decodability(run, device)
    best = decodability["sites"][decodability["best_site"]]
    has_code = result["model"] == HypernetworkTransformerConfig.kind
    return Outcome(
        id=result["scores"]["test"][METRIC]["value"],
        ood=result["scores"]["ood"][METRIC]["value"],
        decodable_id=best["id"],
        decodable_ood=best["ood"],
        untrained_ood=max(site["untrained"]["ood"] for site in decodability["sites"].values()),
        fitted_ood=measure_fitted_code(run.path, device=device)["fitted"]["ood"] if has_code else None,
        minutes=result["seconds"] / 60,
    )


def score_splits(group: Group) -> tuple[Cell | None, Cell | None]:
    """Scores on trained and held-out combinations, with their intervals over seeds."""
    trained, held_out = (score_seeds([run.sums(split, METRIC) for run in group.runs]) for split in ("test", "ood"))
    return cell(trained), cell(held_out)


def tabulate_variants(outcomes: Outcomes, scores: Sequence[tuple[Cell | None, Cell | None]]) -> Table:
    """One row per variant: scores with intervals, and means over seeds of what was read from the networks."""
    names = {
        "fitted code": "fitted_ood",
        "z trained": "decodable_id",
        "z held out": "decodable_ood",
        "z untrained": "untrained_ood",
    }
    rows: list[tuple[Value, ...]] = []
    for (variant, seeds), (trained, held_out) in zip(outcomes, scores, strict=True):
        numbers = [mean_cell([getattr(seed, name) for seed in seeds]) for name in names.values()]
        minutes = mean_cell([seed.minutes for seed in seeds])
        rows.append((*_show(variant), len(seeds), trained, held_out, *numbers, minutes))
    columns: tuple[str | Column, ...] = ("setting", "model", "trunk", "seeds", "trained", "held out", *names)
    return Table(
        title="R² (pooled) by setting, model and trunk",
        columns=(*columns, Column(name="minutes", format="fixed", digits=1)),
        rows=tuple(rows),
        note="means over seeds; in brackets: 95 % intervals over seeds and combinations\n"
        "fitted code: R² held out with the code fitted to the examples instead of inferred\n"
        "z: R² of ridge regression to the latent, best layer",
    )


def tabulate_claims(outcomes: Outcomes) -> Table:
    """One row per claim whose runs are there: its verdict, and the numbers behind it."""
    rows: list[tuple[Value, ...]] = []
    for claim in CLAIMS:
        found = [
            next((seeds for key, seeds in outcomes if dict(key) == dict(variant)), None) for variant in claim.variants
        ]
        variants = [seeds for seeds in found if seeds is not None]
        if len(variants) < len(claim.variants):
            continue
        seeds = list(zip(*variants, strict=False))
        held = [claim.holds(*seed) for seed in seeds]
        verdict: Verdict = "seen" if all(held) else "seen in part" if any(held) else "not seen"
        shown = [claim.show(*seed) for seed in seeds]
        numbers = {name: spread([each[name] for each in shown]) for name in shown[0]}
        known = {name: number for name, number in numbers.items() if number is not None}
        rows.append((claim.text, verdict, sum(held), len(held), known))
    columns: tuple[str | Column, ...] = (
        Column(name="claim", wrap=True),
        "verdict",
        "seeds that show it",
        "seeds",
        Column(name="numbers", wrap=True),
    )
    note = "numbers: mean over seeds, in brackets the lowest and the highest"
    return Table(title="Claims of the paper", columns=columns, rows=tuple(rows), note=note)


def tabulate_gradients(finished: Finished, device: str) -> Table:
    """Variance of gradients between combinations along the training of the first seed."""
    rows: list[tuple[Value, ...]] = []
    for variant in (VANILLA, BOTTLENECK):
        group = finished.find(**variant)
        points: Sequence[Json] = [] if group is None else read_gradients(group.runs[0].run, device)
        rows += [(*_show(variant), point["step"], point["variance_share"], point["transfer"]) for point in points]
    return Table(
        title="Gradients between combinations",
        columns=("setting", "model", "trunk", "step", "variance share", "transfer"),
        rows=tuple(rows),
        note="share: 0 if all combinations agree, 1 if they have nothing in common\n"
        "transfer: cosine with the gradient of held-out combinations",
    )


def _show(variant: Variant) -> tuple[str, ...]:
    return tuple(str(value).replace("_", " ") for value in variant.values())
