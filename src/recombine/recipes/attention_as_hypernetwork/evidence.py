"""Experiments that test the paper's claims at the authors' settings, with the bounds of each verdict.

The authors' release trains with attention dropout 0.1, one mask over (query, key) for all rows and heads. The paper does not
mention it. `dropout` and `sraven-paper` ask what it changes. At scales below `paper` the same comparisons are made with the
task's own sizes and steps of that scale, for a quick look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from recombine.precision import Precision
from recombine.recipes.attention_as_hypernetwork import published
from recombine.recipes.attention_as_hypernetwork.runs import ATTENTIONS, change_model
from recombine.recipes.claims import Close, Lead, Level
from recombine.recipes.comparison import difference_between, score_group
from recombine.recipes.experiment import Experiment, Finished, Published, Record, Setting
from recombine.recipes.learning_curves import NAMES, draw_learning_curves
from recombine.run import default_run
from recombine.seeds import SeedScore
from recombine.tasks.base import Scale

RELEASE_DROPOUT = 0.1
DROPOUTS = (0.0, RELEASE_DROPOUT)
SEEDS = (0, 1, 2)
SHORT_STEPS, PAPER_STEPS = 20_000, 50_000
SRAVEN_STEPS = 78_125  # 10 million instances in batches of 128, half of table A1's

LEAD, CLOSE = 0.05, 0.1  # what counts as a lead, and as about the same
PRECISION: Precision = "bf16"  # 1.6 times as fast as float32 on a CPU with bf16 instructions; see docs/performance.md
NEAR = 2  # standard errors from the published number
FUZZY_SOURCE, SRAVEN_SOURCE = "table A1, fuzzy logic", "table A1, SRAVEN, 20M instances"


def claim_lead(modules: str, source: str, numbers: dict[str, Published], **rest: float | int) -> Lead:
    """HYLA scores higher than softmax attention, all other settings equal."""
    return Lead(
        text=f"HYLA recombines {modules} better than softmax attention",
        where=_describe(rest),
        headline=True,
        source=source,
        better={"attention": "hyla", **rest},
        worse={"attention": "softmax", **rest},
        by=LEAD,
        published=numbers["hyla"].value - numbers["softmax"].value,
    )


def claim_close(source: str, numbers: dict[str, Published], **rest: float | int) -> Close:
    """Linear and softmax attention score about the same, all other settings equal."""
    return Close(
        text="linear and softmax attention are about equal",
        where=_describe(rest),
        source=source,
        first={"attention": "linear", **rest},
        second={"attention": "softmax", **rest},
        within=CLOSE,
        published=numbers["linear"].value - numbers["softmax"].value,
    )


def claim_level(attention: str, steps: int) -> Level:
    """With the release's dropout, the score is near the published one."""
    number = published.FUZZY_LOGIC[attention]
    margin = NEAR * (number.error or 0)
    return Level(
        text="with the release's dropout, scores match the published ones",
        where=f"{NAMES[attention]}, {steps:,} steps",
        headline=True,
        source=FUZZY_SOURCE,
        of={"attention": attention, "dropout": RELEASE_DROPOUT, "steps": steps},
        low=round(number.value - margin, 4),
        high=round(number.value + margin, 4),
        published=number.value,
    )


def claim_dropout_matters(attention: str, steps: int) -> Close:
    """Our question: the dropout changes the score by at most CLOSE."""
    return Close(
        text="the dropout changes the score little",
        where=f"{NAMES[attention]}, {steps:,} steps",
        source="our question",
        first={"attention": attention, "dropout": RELEASE_DROPOUT, "steps": steps},
        second={"attention": attention, "dropout": 0.0, "steps": steps},
        within=CLOSE,
        ours=True,
    )


def claim_unknown_fails(attention: str, steps: int) -> Level:
    """Terms that were never trained cannot be used."""
    return Level(
        text="attention fails on terms that were never trained",
        where=f"{NAMES[attention]}, {steps:,} steps",
        source="section 3, figure A3C",
        of={"attention": attention, "dropout": RELEASE_DROPOUT, "steps": steps},
        high=0.2,
        split="unknown",
    )


def _describe(settings: dict[str, float | int]) -> str:
    words = {name: f"{name} {value:g}" for name, value in settings.items()}
    if "steps" in settings:
        words["steps"] = f"{settings['steps']:,} steps"
    if settings.get("dropout") == 0:
        words["dropout"] = "no dropout"
    return ", ".join(words.values())


def compare_leads(experiment: Experiment, finished: Finished, **rest: Setting) -> str:
    """HYLA's lead over softmax attention with and without the dropout, in a sentence; empty if no pair of runs is there."""
    parts, leads = [], {}
    for rate in DROPOUTS[::-1]:
        hyla, softmax = (finished.find(attention=name, dropout=rate, **rest) for name in ("hyla", "softmax"))
        lead = None if hyla is None or softmax is None else difference_between(experiment, hyla, softmax)
        if lead is None or hyla is None or softmax is None:
            continue
        scores = [score_group(experiment, group).value for group in (hyla, softmax)]
        word = f"with the release's dropout of {rate:g}" if rate else "without dropout"
        over = f"{lead.num_seeds} seed{'s' * (lead.num_seeds > 1)}"
        low, high = lead.pair or (lead.low, lead.high)
        bounds = f"{low:+.2f} {'and' if lead.pair else 'to'} {high:+.2f}"
        parts.append(
            f"{word} HYLA scores {scores[0]:.2f} and softmax attention {scores[1]:.2f} on held-out compositions "
            f"(lead {lead.value:+.2f}, {bounds}, {over})"
        )
        leads[rate] = lead
    text = f"{'; '.join(parts)}: {conclude(leads)}.".replace("-", "−")
    return text[0].upper() + text[1:] if leads else ""


def conclude(leads: Mapping[float, SeedScore]) -> str:
    """What leads with and without dropout, or with one of them alone, mean."""
    ahead = {rate: lead.value >= LEAD and lead.low > 0 for rate, lead in leads.items()}
    behind = [lead.high < 0 for lead in leads.values()]
    if len(ahead) == len(DROPOUTS) and any(ahead.values()):
        if all(ahead.values()):
            return "HYLA's lead does not need the dropout"
        return f"HYLA leads only {'with' if ahead[RELEASE_DROPOUT] else 'without'} the dropout"
    if any(ahead.values()):
        return "HYLA leads"
    return "HYLA is behind" if behind and all(behind) else "HYLA does not lead here"


class Dropout(Experiment):
    """Fuzzy logic with 32 tokens and 70 % held out: three seeds at 20,000 steps, one at the paper's 50,000."""

    name = "dropout"
    question = "Does the advantage of hypernetwork attention need the attention dropout of the release?"
    metric = "r2"
    compared = "attention"
    default_scale = "paper"
    claims = (
        *(
            claim_lead("fuzzy-logic terms", FUZZY_SOURCE, published.FUZZY_LOGIC, dropout=rate, steps=steps)
            for steps in (SHORT_STEPS, PAPER_STEPS)
            for rate in DROPOUTS[::-1]
        ),
        claim_close(FUZZY_SOURCE, published.FUZZY_LOGIC, dropout=RELEASE_DROPOUT, steps=SHORT_STEPS),
        *(claim_level(attention, SHORT_STEPS) for attention in ATTENTIONS[::-1]),
        *(claim_level(attention, PAPER_STEPS) for attention in ATTENTIONS[::-1]),
        *(claim_dropout_matters(attention, SHORT_STEPS) for attention in ATTENTIONS[::-1]),
        *(claim_unknown_fails(attention, SHORT_STEPS) for attention in ATTENTIONS[::-1]),
    )
    differs = (
        "20,000 steps instead of 50,000 where stated; learning rate 1e-3 and weight decay 0.1 instead of the best of a "
        "grid; bf16."
    )

    known_before = "softmax and HYLA with one seed at 10,000 steps, with and without dropout."

    def answer(self, finished: Finished) -> str:
        return compare_leads(self, finished, steps=SHORT_STEPS)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        panels = {
            f"dropout {rate:g}" if rate else "no dropout": {"dropout": rate, "steps": SHORT_STEPS}
            for rate in DROPOUTS[::-1]
        }
        return [draw_learning_curves(self, finished, folder / "dropout_curves.png", panels)]

    def records(self, scale: Scale) -> Iterator[Record]:
        base = default_run("fuzzy_logic", scale)
        budgets = {SHORT_STEPS: SEEDS, PAPER_STEPS: (0,)} if scale == "paper" else {base.training.steps: (0,)}
        for steps, seeds in budgets.items():
            for seed in seeds:
                for attention in ATTENTIONS:
                    for rate in DROPOUTS:
                        config = change_model(base, attention=attention, attention_dropout=rate)
                        record = Record(
                            settings={"attention": attention, "dropout": rate, "steps": steps},
                            config=replace(config, training=replace(config.training, steps=steps, precision=PRECISION)),
                            published=published.FUZZY_LOGIC[attention],
                        )
                        yield record.with_seed(seed)


class SRavenPaper(Experiment):
    """SRAVEN at the paper's size: four features, four layers, 10 million instances with a schedule of that length."""

    name = "sraven-paper"
    question = "Does hypernetwork attention recombine rules better at the size of the paper?"
    metric = "accuracy"
    compared = "attention"
    default_scale = "paper"
    claims = (
        *(claim_lead("rules of Raven matrices", SRAVEN_SOURCE, published.SRAVEN, dropout=rate) for rate in DROPOUTS),
        *(claim_close(SRAVEN_SOURCE, published.SRAVEN, dropout=rate) for rate in DROPOUTS),
        *(
            Level(
                text="attention recombines rules with accuracy far above chance",
                where=f"{NAMES[attention]}, {_describe({'dropout': rate})}",
                source="figure 4",
                of={"attention": attention, "dropout": rate},
                low=0.4,
            )
            for attention in ATTENTIONS[::-1]
            for rate in DROPOUTS
        ),
    )

    differs = (
        "10 million instances instead of 20; bf16; "
        "at `tiny` two features and 6,000 steps of a narrow model, three seeds."
    )

    def answer(self, finished: Finished) -> str:
        return compare_leads(self, finished)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        panels = {f"dropout {rate:g}" if rate else "no dropout": {"dropout": rate} for rate in DROPOUTS}
        batch = finished.runs[0].record.config.training.batch_size
        path = folder / "sraven_curves.png"
        return [draw_learning_curves(self, finished, path, panels, x="training instances", per_step=batch)]

    def records(self, scale: Scale) -> Iterator[Record]:
        base = default_run("sraven", scale)
        steps = SRAVEN_STEPS if scale == "paper" else base.training.steps
        for seed in (0,) if scale == "paper" else SEEDS:
            for rate in DROPOUTS:
                for attention in ("softmax", "hyla", "linear"):
                    config = change_model(base, attention=attention, attention_dropout=rate)
                    record = Record(
                        settings={"attention": attention, "dropout": rate},
                        config=replace(config, training=replace(config.training, steps=steps, precision=PRECISION)),
                        published=published.SRAVEN[attention] if scale == "paper" else None,
                    )
                    yield record.with_seed(seed)
