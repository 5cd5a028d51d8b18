"""Fuzzy logic in Attention as a Hypernetwork (arXiv 2406.05816): the main comparison, table A3, and figures 2C and A3.

The authors' release trains with attention dropout 0.1, one mask over (query, key) for all rows and heads. The paper does not
mention it. `dropout`, `sraven-dropout` and `sraven-paper` ask what it changes. At scales below the default, the same
comparisons are made with the task's sizes and steps of that scale, for a quick look.

The paper prints curves and no numbers for figures 2C and A3, so their claims are its sentences, with bounds of our choice. The
grid is reduced to the most informative points, and runs are shared with other experiments where they are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from recombine.attention import AttentionName
from recombine.foundation import check_choice
from recombine.sweeps import Published, Record, Setting, grid, search
from recombine.tasks import Scale
from recombine.training import Precision, RunConfig, SeedScore, default_run, subtract
from recombine_papers.base import Experiment, Finished, difference_between, score_group
from recombine_papers.claims import AtLeast, Difference, Lead, Level, Settings, with_excess
from recombine_papers.experiment import PaperExperiment, SeededExperiment
from recombine_papers.hypernetwork import published
from recombine_papers.learning_curves import NAMES, draw_learning_curves

ATTENTIONS: tuple[AttentionName, ...] = ("softmax", "linear", "hyla")


def change_model(run: RunConfig, **choices: Any) -> RunConfig:
    """The run with other choices of its model."""
    return replace(run, model=replace(run.model, **choices))


def change_task(run: RunConfig, **choices: Any) -> RunConfig:
    """The run with other choices of its task."""
    return replace(run, task=replace(run.task, **choices))


class FuzzyLogicComparison(PaperExperiment):
    """The paper's main comparison."""

    name = "fuzzy-logic"
    core_hours = (0.078, 0.42, 2.1)
    question = "Do softmax, linear and hypernetwork attention recombine fuzzy-logic terms?"
    metric = "r2"
    compared = "attention"

    def records(self, scale: Scale) -> Iterator[Record]:
        for attention in ATTENTIONS:
            config = change_model(default_run("fuzzy_logic", scale), attention=attention)
            yield Record(settings={"attention": attention}, config=config, published=published.FUZZY_LOGIC[attention])


class SRavenComparison(PaperExperiment):
    """The same comparison on the symbolic Raven matrices. Published numbers are for four features, `--scale paper`."""

    name = "sraven"
    core_hours = (0.32, 1, 23)
    question = "Do softmax, linear and hypernetwork attention recombine the rules of Raven matrices?"
    metric = "accuracy"
    compared = "attention"

    def records(self, scale: Scale) -> Iterator[Record]:
        for attention in ATTENTIONS:
            config = change_model(default_run("sraven", scale), attention=attention)
            number: Published | None = published.SRAVEN[attention] if scale == "paper" else None
            yield Record(settings={"attention": attention}, config=config, published=number)


GRIDS: dict[str, dict[str, tuple[float | int, ...]]] = {
    "fuzzy_logic": {"learning_rate": (1e-3, 3e-3), "weight_decay": (0.03, 0.1), "warmup_steps": (100,)},
    "sraven": {"learning_rate": (3e-4, 1e-3), "weight_decay": (0.1, 0.3), "warmup_steps": (1_000, 3_000)},
}


def table_a3(task: str, scale: Scale = "paper", *, attentions: Iterable[str] = ATTENTIONS) -> list[Record]:
    """The paper's search: every attention with every point of the task's grid (table A3)."""
    name = task.replace("-", "_")
    points = GRIDS[check_choice("task with a grid", name, GRIDS)]
    fixed: dict[str, Any] = {setting: values[0] for setting, values in points.items() if len(values) == 1}
    varied = {setting: values for setting, values in points.items() if setting not in fixed}
    run = default_run(name, scale)
    run = replace(run, training=replace(run.training, **fixed))
    return [point for record in grid(run, attention=attentions) for point in search(record, **varied)]


RELEASE_DROPOUT = 0.1
RELEASE_DROPOUT_IN_WORDS = (
    f"attention dropout {RELEASE_DROPOUT:g}, which the authors' code uses and the paper does not mention"
)
DROPOUTS = (0.0, RELEASE_DROPOUT)
SEEDS = (0, 1, 2)
SHORT_STEPS, PAPER_STEPS = 20_000, 50_000

LEAD = CLOSE = 0.05  # the difference that counts as a lead; a smaller one counts as about the same
SOLVED = 0.8
PRECISION: Precision = "bf16"  # 1.6 times as fast as float32 on a CPU with bf16 instructions; see docs/performance.md
NEAR = 2  # standard errors from the published number
FUZZY_SOURCE = "table A1, fuzzy logic"


FIRST_ATTENTIONS = ("softmax", "hyla", "linear")  # the most important first
EXAMPLES_AND_HELD_OUT = ((32, 0.7), (32, 0.3), (16, 0.7), (96, 0.7))  # tokens with the query; the most important first


def near(number: Published) -> dict[str, Any]:
    """The bounds and the published number of a claim that a score is the published one, by its standard error."""
    margin = NEAR * (number.error or 0)
    low, high = max(0.0, round(number.value - margin, 4)), round(number.value + margin, 4)
    return {"low": low, "high": high, "published": number.value}


def with_steps(run: RunConfig, steps: int) -> RunConfig:
    """The run with another number of steps, in the precision of all these experiments."""
    return replace(run, training=replace(run.training, steps=steps, precision=PRECISION))


def claim_lead(
    modules: str, source: str, numbers: dict[str, Published], over: str = "softmax", **rest: float | int
) -> Lead:
    """HYLA scores higher than another attention, all other settings equal."""
    return Lead(
        text=f"HYLA recombines {modules} better than {over} attention",
        where=describe_rest(rest),
        source=source,
        better={"attention": "hyla", **rest},
        worse={"attention": over, **rest},
        by=LEAD,
        published=numbers["hyla"].value - numbers[over].value,
    )


def claim_close(source: str, numbers: dict[str, Published], **rest: float | int) -> Difference:
    """Linear and softmax attention score about the same, all other settings equal."""
    return Difference(
        text="linear and softmax attention are about equal",
        where=describe_rest(rest),
        source=source,
        first={"attention": "linear", **rest},
        second={"attention": "softmax", **rest},
        low=-CLOSE,
        high=CLOSE,
        published=numbers["linear"].value - numbers["softmax"].value,
    )


def claim_close_on_trained(attention: str, **rest: float | int) -> Difference:
    """On trained compositions, an attention scores about as softmax attention does."""
    return Difference(
        text="on trained compositions, the attentions differ little",
        where=f"{NAMES[attention]} against softmax, {describe_rest(rest)}",
        source="section 3.1, figures A3B and A3D",
        first={"attention": attention, **rest},
        second={"attention": "softmax", **rest},
        low=-CLOSE,
        high=CLOSE,
        split="test",
    )


def claim_level(attention: str, steps: int) -> Level:
    """With the dropout of the authors' code, the score is near the published one."""
    return Level(
        text=f"with {RELEASE_DROPOUT_IN_WORDS}, scores match the published ones",
        where=f"{NAMES[attention]}, {steps:,} steps",
        source=FUZZY_SOURCE,
        of={"attention": attention, "dropout": RELEASE_DROPOUT, "steps": steps},
        **near(published.FUZZY_LOGIC[attention]),
    )


def claim_dropout_changes_little(attention: str, what: str = "the score", **rest: int) -> Difference:
    """Our question: the dropout changes the score by at most CLOSE."""
    return Difference(
        text=f"the dropout changes {what} little",
        where=", ".join([NAMES[attention], *([describe_rest(rest)] if rest else [])]),
        source="our question",
        first={"attention": attention, "dropout": RELEASE_DROPOUT, **rest},
        second={"attention": attention, "dropout": 0.0, **rest},
        low=-CLOSE,
        high=CLOSE,
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


def describe_rest(settings: Mapping[str, float | int]) -> str:
    """Settings in words."""
    words = {name: f"{name} {value:g}" for name, value in settings.items()}
    if "steps" in settings:
        words["steps"] = f"{settings['steps']:,} steps"
    if settings.get("dropout") == 0:
        words["dropout"] = "no dropout"
    return ", ".join(words.values())


def compare_leads(experiment: PaperExperiment, finished: Finished, **rest: Setting) -> str:
    """HYLA's lead over softmax attention with and without the dropout, in a sentence; empty if no pair of runs is there."""
    parts, leads = [], {}
    for rate in DROPOUTS[::-1]:
        groups = finished.find_all(*({"attention": name, "dropout": rate, **rest} for name in ("hyla", "softmax")))
        lead = difference_between(experiment, groups[0], groups[1]) if groups else None
        if lead is None or groups is None:
            continue
        scores = [score_group(experiment, group).value for group in groups]
        word = f"with attention dropout {rate:g}" if rate else "without dropout"
        over = f"{lead.num_seeds} seed{'s' * (lead.num_seeds > 1)}"
        low, high = lead.pair or (lead.low, lead.high)
        bounds = f"{low:+.2f} {'and' if lead.pair else 'to'} {high:+.2f}"
        parts.append(
            f"{word} HYLA scores {scores[0]:.2f} and softmax attention {scores[1]:.2f} on held-out compositions "
            f"(lead {lead.value:+.2f}, {bounds}, {over})"
        )
        leads[rate] = lead
    text = re.sub(r"-(?=\d)", "−", f"{'; '.join(parts)}: {conclude(leads)}.")
    return text[0].upper() + text[1:] if leads else ""


def compare_rates(experiment: PaperExperiment, finished: Finished) -> str:
    """What the dropout changes for each attention, in a sentence; empty if no pair of runs is there."""
    changes = []
    for attention in ATTENTIONS[::-1]:
        with_it, without = (finished.find(attention=attention, dropout=rate) for rate in DROPOUTS[::-1])
        change = None if with_it is None or without is None else difference_between(experiment, with_it, without)
        if change is not None:
            changes.append(f"{NAMES[attention]} {change.value:+.2f}")
    text = f"The dropout changes {experiment.metric} on held-out compositions: {', '.join(changes)}."
    return re.sub(r"-(?=\d)", "−", text) if changes else ""


def conclude(leads: Mapping[float, SeedScore]) -> str:
    """What leads with and without dropout, or with one of them alone, mean."""
    if all(lead.num_seeds == 1 for lead in leads.values()):
        return "one seed, so this is preliminary"
    ahead = {rate: lead.value >= LEAD and lead.low > 0 for rate, lead in leads.items()}
    behind = [lead.high < 0 for lead in leads.values()]
    if len(ahead) == len(DROPOUTS) and any(ahead.values()):
        if all(ahead.values()):
            return "HYLA's lead does not need the dropout"
        return f"HYLA leads only {'with' if ahead[RELEASE_DROPOUT] else 'without'} the dropout"
    if any(ahead.values()):
        return "HYLA leads"
    return "HYLA is behind" if behind and all(behind) else "HYLA does not lead here"


class Dropout(PaperExperiment):
    """Fuzzy logic with 32 tokens and 70 % held out: three seeds, but for the paper's 50,000 steps without dropout."""

    name = "dropout"
    core_hours = (0.23, 1.1, 14)
    question = f"Does the advantage of hypernetwork attention need {RELEASE_DROPOUT_IN_WORDS}?"
    metric = "r2"
    compared = "attention"
    default_scale = "paper"
    smaller: ClassVar[Settings] = {"steps": SHORT_STEPS}
    claims = (
        *(
            claim
            for over in ("softmax", "linear")
            for steps in (SHORT_STEPS, PAPER_STEPS)
            for rate in DROPOUTS[::-1]
            for claim in with_excess(
                claim_lead("fuzzy-logic terms", FUZZY_SOURCE, published.FUZZY_LOGIC, over, dropout=rate, steps=steps)
            )
        ),
        claim_close(FUZZY_SOURCE, published.FUZZY_LOGIC, dropout=RELEASE_DROPOUT, steps=SHORT_STEPS),
        *(claim_level(attention, SHORT_STEPS) for attention in ATTENTIONS[::-1]),
        *(claim_level(attention, PAPER_STEPS) for attention in ATTENTIONS[::-1]),
        *(claim_dropout_changes_little(attention, steps=SHORT_STEPS) for attention in ATTENTIONS[::-1]),
        *(claim_unknown_fails(attention, SHORT_STEPS) for attention in ATTENTIONS[::-1]),
        *(
            claim_close_on_trained(attention, dropout=rate, steps=SHORT_STEPS)
            for rate in DROPOUTS[::-1]
            for attention in ("hyla", "linear")
        ),
    )
    differs = (
        "20,000 steps instead of 50,000 where stated; learning rate 1e-3 and weight decay 0.1 instead of the best of a "
        "grid; bf16."
    )

    known_before = (
        "softmax and HYLA with one seed at 10,000 steps, with and without dropout. HYLA against linear attention was added "
        "when the runs of 20,000 steps were known, and so were the claims on trained compositions."
    )

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
        budgets = {SHORT_STEPS: SEEDS, PAPER_STEPS: SEEDS} if scale == "paper" else {base.training.steps: (0,)}
        for steps, seeds in budgets.items():
            for seed in seeds:
                for attention in ATTENTIONS:
                    for rate in DROPOUTS if steps != PAPER_STEPS or seed == 0 else (RELEASE_DROPOUT,):
                        config = change_model(base, attention=attention, attention_dropout=rate)
                        record = Record(
                            settings={"attention": attention, "dropout": rate, "steps": steps},
                            config=with_steps(config, steps),
                            published=published.FUZZY_LOGIC[attention],
                        )
                        yield record.with_seed(seed)


class SeveralSeeds(SeededExperiment):
    """An experiment with three seeds at its default scale, where runs take minutes, and one at the others."""

    compared = "attention"

    def count_seeds(self, scale: Scale) -> int:
        return 3 if scale == self.default_scale else 1


@dataclass(frozen=True, kw_only=True)
class FallsLess(AtLeast):
    """From an easy to a hard task, the score of one setting falls less than that of another.

    The difference between the falls is that between the leads on the hard and on the easy task. Each lead is paired, because
    both settings solve the same instances; the two tasks have different instances. Only seeds that all four have count.
    """

    number_name: ClassVar[str] = "difference between the falls"
    easy: Settings
    hard: Settings
    easy_other: Settings
    hard_other: Settings

    def measure(self, experiment: Experiment, finished: Finished) -> SeedScore | None:
        groups = finished.find_all(self.easy, self.hard, self.easy_other, self.hard_other)
        if groups is None:
            return None
        easy, hard, easy_other, hard_other = groups
        before = difference_between(experiment, easy, easy_other, self.split, self.metric)
        after = difference_between(experiment, hard, hard_other, self.split, self.metric)
        return None if before is None or after is None else subtract(after, before)


class Figure2C(SeveralSeeds):
    """Numbers of examples and fractions held out. Figure A3 has the other splits of the same runs."""

    name = "figure-2c"
    core_hours = (0.53, 20, 17)
    question = "How do examples and held-out compositions change what attention recombines?"
    metric = "r2"
    compared = "attention"
    claims = (
        *(
            Level(
                text="given sufficient examples, attention solves the task (30 % held out; 32 tokens, the query included)",
                where=NAMES[attention],
                source="section 3, figure 2C",
                of={"attention": attention, "examples": 32, "held_out": 0.3},
                low=SOLVED,
            )
            for attention in ATTENTIONS
        ),
        *(
            Lead(
                text=f"HYLA recombines fuzzy-logic terms better than {attention} attention",
                where=f"{examples} tokens, the query included",
                source="section 3, figure 2C",
                better={"attention": "hyla", "examples": examples, "held_out": 0.7},
                worse={"attention": attention, "examples": examples, "held_out": 0.7},
                by=LEAD,
            )
            for attention in ("softmax", "linear")
            for examples in (16, 96)
        ),
        *(
            Lead(
                paired=False,
                text=text,
                where=NAMES[attention],
                source="section 3, figure 2C",
                better={"attention": attention, "examples": better[0], "held_out": better[1]},
                worse={"attention": attention, "examples": worse[0], "held_out": worse[1]},
                by=LEAD,
            )
            for text, better, worse in (
                (
                    "scores fall when 70 % are held out instead of 30 % (32 tokens, the query included)",
                    (32, 0.3),
                    (32, 0.7),
                ),
                ("more examples help: 96 tokens against 16 (70 % held out)", (96, 0.7), (16, 0.7)),
            )
            for attention in ATTENTIONS
        ),
        *(
            FallsLess(
                text="HYLA is less affected than other attentions when 70 % are held out instead of 30 %",
                where=f"against {NAMES[attention]}, 32 tokens, the query included",
                source="section 3.1, figure 2C",
                easy={"attention": "hyla", "examples": 32, "held_out": 0.3},
                hard={"attention": "hyla", "examples": 32, "held_out": 0.7},
                easy_other={"attention": attention, "examples": 32, "held_out": 0.3},
                hard_other={"attention": attention, "examples": 32, "held_out": 0.7},
                by=LEAD,
            )
            for attention in ("softmax", "linear")
        ),
        *(
            replace(
                claim_close_on_trained(attention, examples=examples, held_out=held_out),
                where=f"{NAMES[attention]} against softmax, {examples} tokens, {100 * held_out:g} % held out",
            )
            for examples, held_out in EXAMPLES_AND_HELD_OUT[1:]  # `dropout` has the first
            for attention in ("hyla", "linear")
        ),
    )

    differs = "20,000 steps instead of 50,000; four points of the grid; bf16. Trained with attention dropout 0.1."
    known_before = (
        "for the claims that HYLA is less affected and that attentions differ little on trained compositions, seed 0 of "
        "softmax attention and HYLA with 30 % held out, and all runs with 32 tokens and 70 %."
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        base = default_run("fuzzy_logic", scale)
        base = with_steps(base, SHORT_STEPS if scale == "small" else base.training.steps)
        for attention in FIRST_ATTENTIONS:
            for examples, held_out in EXAMPLES_AND_HELD_OUT:
                config = change_task(base, num_examples=examples, held_out=held_out)
                config = change_model(config, attention=attention, attention_dropout=RELEASE_DROPOUT)
                settings: dict[str, Setting] = {"attention": attention, "examples": examples, "held_out": held_out}
                yield Record(settings=settings, config=config)
