"""SRAVEN in Attention as a Hypernetwork: at the paper's size, and at a size that trains in minutes (figures 4, 4B, 5C, 5D, A5).

The paper prints curves and no numbers for these figures, so the claims are its sentences, with bounds of our choice. Fractions
held out and numbers of features are our choice too, because the text does not give them. The grids are reduced to the most
informative points, and runs are shared with other experiments where they are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from recombine.sweeps import Record, Setting
from recombine.tasks import Scale
from recombine.training import RunConfig, default_run
from recombine_papers.base import Finished
from recombine_papers.claims import Lead, Level, with_excess
from recombine_papers.experiment import PaperExperiment
from recombine_papers.hypernetwork import published
from recombine_papers.hypernetwork.fuzzy_logic import (
    ATTENTIONS,
    DROPOUTS,
    FIRST_ATTENTIONS,
    LEAD,
    PRECISION,
    SEEDS,
    SOLVED,
    SeveralSeeds,
    change_model,
    change_task,
    claim_close,
    claim_dropout_changes_little,
    claim_lead,
    compare_leads,
    compare_rates,
    describe_rest,
    near,
    with_steps,
)
from recombine_papers.learning_curves import NAMES, draw_learning_curves

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
    return Level(
        text="accuracy on Raven matrices matches the published one",
        where=f"{NAMES[attention]}, 10 million instances, {describe_rest({'dropout': rate})}",
        source=SRAVEN_SOURCE,
        of={"attention": attention, "dropout": rate},
        **near(published.SRAVEN[attention]),
    )


class SRavenPaper(PaperExperiment):
    """SRAVEN at the paper's size: four features, four layers, 10 million instances with a schedule of that length."""

    name = "sraven-paper"
    core_hours = (2.4, 7.7, 29)
    question = "Does hypernetwork attention recombine rules better at the size of the paper?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "paper"
    claims = (
        *(
            claim
            for over in ("softmax", "linear")
            for rate in DROPOUTS
            for claim in with_excess(claim_lead_of_small(over, rate))
        ),
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


class SRavenDropout(PaperExperiment):
    """SRAVEN with two features and a narrow model, which trains in minutes, so that three seeds can be afforded."""

    name = "sraven-dropout"
    core_hours = (2.4, 7.7, 87)
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


def draw_sraven_curves(experiment: PaperExperiment, finished: Finished, path: Path) -> Path:
    """Accuracy against training instances, with and without dropout."""
    panels = {f"dropout {rate:g}" if rate else "no dropout": {"dropout": rate} for rate in DROPOUTS}
    batch = finished.runs[0].record.config.training.batch_size
    return draw_learning_curves(experiment, finished, path, panels, x="training instances", per_step=batch)


STEPS_OF_SIZES: dict[Scale, tuple[int, int]] = {  # of figure 4, in batches of 128
    "tiny": (1_500, 6_000),
    "small": (6_000, 24_000),
    "paper": (SRAVEN_STEPS, 312_500),
}
SMALLEST = "two features, a narrow model, 6,000 steps (`tiny`) instead of four features and 20M instances; bf16."


def sraven(scale: Scale) -> RunConfig:
    """SRAVEN as in `sraven-paper` without dropout, so that runs are shared."""
    base = default_run("sraven", scale)
    return replace(base, training=replace(base.training, precision=PRECISION))


class Figure4(SeveralSeeds):
    """More data and a wider model, together. The small size is that of `sraven-dropout`, so that runs are shared."""

    name = "figure-4"
    core_hours = (0.74, 8.5, None)
    question = "Does every attention solve held-out Raven matrices with enough data and size?"
    metric = "accuracy"
    compared = "size"
    claims = (
        *(
            Level(
                text="with enough data and size, attention solves 80 % of puzzles of held-out compositions",
                where=NAMES[attention],
                source="section 4, figure 4",
                of={"attention": attention, "size": "large"},
                low=SOLVED,
            )
            for attention in ATTENTIONS[::-1]
        ),
        *(
            Lead(
                text="more data and a wider model recombine better",
                where=NAMES[attention],
                source="section 4, figure 4",
                better={"attention": attention, "size": "large"},
                worse={"attention": attention, "size": "small"},
                by=LEAD,
            )
            for attention in ATTENTIONS[::-1]
        ),
    )
    differs = (
        "two features instead of four; width 64 and 768,000 instances against 128 and 3 million, instead of 128 to 512 and "
        "10 to 40 million; learning rate 2e-3 at the small size and 1e-3 at the large one; bf16."
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        small, large = STEPS_OF_SIZES[scale]
        runs = {"small": (sraven("tiny"), small), "large": (sraven("small"), large)}
        if scale == "paper":
            runs = {"small": (sraven(scale), small), "large": (widen(sraven(scale)), large)}
        for size, (run, steps) in runs.items():
            for attention in FIRST_ATTENTIONS:
                record = Record(
                    settings={"attention": attention, "size": size}, config=change_model(run, attention=attention)
                )
                yield record.with_steps(steps)


def widen(run: RunConfig, factor: int = 4) -> RunConfig:
    """The run with a wider model; the number of heads grows too."""
    names = ("embedding_dim", "kqv_dim", "mlp_dim", "num_heads")
    return change_model(run, **{name: factor * getattr(run.model, name) for name in names})


class SmallSRaven(SeveralSeeds):
    """Several values of one setting of the model or the task, at the smallest size that learns."""

    metric = "accuracy"
    default_scale = "tiny"
    differs = SMALLEST
    setting: ClassVar[str]
    field: ClassVar[str]  # of the model or the task
    values: ClassVar[tuple[int | float, ...]]
    more_values: ClassVar[tuple[int | float, ...]] = ()  # at larger scales, if others

    def variants(self, scale: Scale) -> Iterator[Record]:
        for attention in FIRST_ATTENTIONS:
            run = change_model(sraven(scale), attention=attention)
            change = change_model if hasattr(run.model, self.field) else change_task
            for value in self.values if scale == "tiny" else self.more_values or self.values:
                settings: dict[str, Setting] = {"attention": attention, self.setting: value}
                yield Record(settings=settings, config=change(run, **{self.field: value}))


def compare_values(
    text: str,
    source: str,
    setting: str,
    better: Sequence[float],
    worse: float,
    *,
    where: str = "",
    attentions: Sequence[str] = ATTENTIONS,
    paired: bool = True,
) -> tuple[Lead, ...]:
    """Some values of a setting lead to better recombination than another, for each attention."""
    return tuple(
        Lead(
            text=text,
            where=f"{NAMES[attention]}{where.format(value)}",
            source=source,
            better={"attention": attention, setting: value},
            worse={"attention": attention, setting: worse},
            by=LEAD,
            paired=paired,
        )
        for attention in attentions
        for value in better
    )


class Heads(SmallSRaven):
    """Figure 5C. Queries, keys and values have the same number of features over all heads together."""

    name = "heads"
    core_hours = (3.2, 7.1, 130)
    question = "Does a single head, which leaves no hypernetwork, make recombination worse?"
    compared = "heads"
    setting, field = "heads", "num_heads"
    values, more_values = (8, 1, 2), (16, 8, 4, 2, 1)
    claims = compare_values(
        "a single head recombines worse than several",
        "section 4, figure 5C",
        "heads",
        (8, 2),
        1,
        where=", 1 head against {}",
    )


class Depth(SmallSRaven):
    """Figures 4B and A4B: the number of layers. Runs with four layers are those of `sraven-dropout` without dropout."""

    name = "depth"
    core_hours = (1.6, 1.8, None)
    question = "Does a deeper model recombine rules better?"
    compared = "layers"
    setting, field = "layers", "num_layers"
    values = (4, 8)  # the two smallest of the paper's three
    claims = compare_values(
        "a deeper model recombines better (8 layers against 4)",
        "section 4.4, figures 4B and A4B",
        "layers",
        (8,),
        4,
        attentions=ATTENTIONS[::-1],
    )
    known_before = "the runs with four layers."


class Features(SmallSRaven):
    """Figure 5D: the number of features, each with its own rule."""

    name = "features"
    core_hours = (4.8, 5.5, 70)
    question = "Does the number of features make Raven matrices harder to recombine?"
    setting, field = "features", "num_features"
    values = (2, 4, 3)
    claims = compare_values(
        "four features are harder than two", "section 4, figure 5D", "features", (2,), 4, paired=False
    )


class HeldOut(SmallSRaven):
    """Figure A5: the fraction of rule compositions held out."""

    name = "held-out"
    core_hours = (3.3, 3.7, 84)
    question = "How many compositions of rules can be held out from training?"
    setting = field = "held_out"
    values = (0.25, 0.7, 0.5)
    claims = compare_values(
        "accuracy falls when 70 % are held out instead of 25 %", "figure A5", "held_out", (0.25,), 0.7, paired=False
    )
