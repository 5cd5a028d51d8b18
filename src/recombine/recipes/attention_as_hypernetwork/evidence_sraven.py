"""SRAVEN at the paper's size, and at a size that trains in minutes, with the bounds of each verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from recombine.recipes.attention_as_hypernetwork import published
from recombine.recipes.attention_as_hypernetwork.evidence import (
    DROPOUTS,
    LEAD,
    NEAR,
    SEEDS,
    claim_close,
    claim_dropout_changes_little,
    claim_lead,
    compare_leads,
    compare_rates,
    describe_rest,
    with_steps,
)
from recombine.recipes.attention_as_hypernetwork.runs import ATTENTIONS, change_model
from recombine.recipes.claims import Lead, Level
from recombine.recipes.experiment import Experiment, Finished, Record
from recombine.recipes.learning_curves import NAMES, draw_learning_curves
from recombine.run import default_run
from recombine.tasks.base import Scale

SRAVEN_STEPS = 78_125  # 10 million instances in batches of 128, half of table A1's
SRAVEN_SOURCE = "table A1, SRAVEN, 20M instances"
SMALLEST_SIZE = "10 million instances, 4 layers of width 128"  # of figure 4


def claim_lead_of_small(over: str, rate: float) -> Lead:
    """HYLA leads at the smallest size of the paper, which is that of `sraven-paper`."""
    claim = claim_lead("rules of Raven matrices", SRAVEN_SOURCE, published.SRAVEN, over, dropout=rate)
    return replace(
        claim,
        text=f"with few instances and a small model, {claim.text}",
        where=f"{SMALLEST_SIZE}, {claim.where}",
        source=f"section 4.4, figure 4, {SRAVEN_SOURCE}",
    )


def claim_accuracy(attention: str, rate: float) -> Level:
    """The accuracy is near the published one."""
    number = published.SRAVEN[attention]
    margin = NEAR * (number.error or 0)
    return Level(
        text="accuracy on Raven matrices matches the published one",
        where=f"{NAMES[attention]}, 10 million instances, {describe_rest({'dropout': rate})}",
        source=SRAVEN_SOURCE,
        of={"attention": attention, "dropout": rate},
        low=round(number.value - margin, 4),
        high=round(number.value + margin, 4),
        published=number.value,
    )


class SRavenPaper(Experiment):
    """SRAVEN at the paper's size: four features, four layers, 10 million instances with a schedule of that length."""

    name = "sraven-paper"
    question = "Does hypernetwork attention recombine rules better at the size of the paper?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "paper"
    claims = (
        *(claim_lead_of_small(over, rate) for over in ("softmax", "linear") for rate in DROPOUTS),
        *(claim_close(SRAVEN_SOURCE, published.SRAVEN, dropout=rate) for rate in DROPOUTS),
        *(
            Level(
                text="attention recombines rules with accuracy far above chance",
                where=f"{NAMES[attention]}, {describe_rest({'dropout': rate})}",
                source="figure 4",
                of={"attention": attention, "dropout": rate},
                low=0.4,
            )
            for attention in ATTENTIONS[::-1]
            for rate in DROPOUTS
        ),
        *(claim_accuracy(attention, rate) for attention in ATTENTIONS[::-1] for rate in DROPOUTS[::-1]),
    )

    differs = "10 million instances instead of 20; bf16; one point of the grid of hyperparameters."
    known_before = (
        "for HYLA against linear attention, the score of HYLA. The claims on published accuracies were added when the runs "
        "without dropout were known. Nothing was known for the other claims."
    )

    def answer(self, finished: Finished) -> str:
        return compare_leads(self, finished)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return [draw_sraven_curves(self, finished, folder / "sraven_curves.png")]

    def records(self, scale: Scale) -> Iterator[Record]:
        return list_sraven_records(scale, (0,) if scale == "paper" else SEEDS)


class SRavenDropout(Experiment):
    """SRAVEN with two features and a narrow model, which trains in minutes, so that three seeds can be afforded."""

    name = "sraven-dropout"
    question = "What does attention dropout 0.1 change on small Raven matrices?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "tiny"
    judged_scales = ("tiny",)  # the claims are about this size; at `paper` the runs are those of `sraven-paper`
    claims = (
        *(claim_dropout_changes_little(attention, "accuracy on two features") for attention in ATTENTIONS[::-1]),
        *(
            Lead(
                text=f"HYLA leads {over} attention also below the sizes of the paper (two features, 768,000 instances)",
                where=describe_rest({"dropout": rate}),
                source="our question",
                better={"attention": "hyla", "dropout": rate},
                worse={"attention": over, "dropout": rate},
                by=LEAD,
                ours=True,
            )
            for over in ("softmax", "linear")
            for rate in DROPOUTS[::-1]
        ),
    )
    differs = "two features instead of four, a narrower model, 768,000 instances instead of 10 to 40 million; bf16."
    known_before = (
        "one seed of softmax attention and HYLA, with and without dropout. HYLA against linear attention was added when all "
        "runs were known."
    )

    def answer(self, finished: Finished) -> str:
        return f"{compare_rates(self, finished)} {compare_leads(self, finished)}".strip()

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return [draw_sraven_curves(self, finished, folder / "sraven_dropout_curves.png")]

    def records(self, scale: Scale) -> Iterator[Record]:
        return list_sraven_records(scale, SEEDS)


def list_sraven_records(scale: Scale, seeds: Iterable[int]) -> Iterator[Record]:
    """The three attentions on SRAVEN with and without dropout."""
    base = default_run("sraven", scale)
    steps = SRAVEN_STEPS if scale == "paper" else base.training.steps
    for seed in seeds:
        for rate in DROPOUTS:
            for attention in ("softmax", "hyla", "linear"):
                config = change_model(base, attention=attention, attention_dropout=rate)
                record = Record(
                    settings={"attention": attention, "dropout": rate},
                    config=with_steps(config, steps),
                    published=published.SRAVEN[attention] if scale == "paper" else None,
                )
                yield record.with_seed(seed)


def draw_sraven_curves(experiment: Experiment, finished: Finished, path: Path) -> Path:
    """Accuracy against training instances, with and without dropout."""
    panels = {f"dropout {rate:g}" if rate else "no dropout": {"dropout": rate} for rate in DROPOUTS}
    batch = finished.runs[0].record.config.training.batch_size
    return draw_learning_curves(experiment, finished, path, panels, x="training instances", per_step=batch)
