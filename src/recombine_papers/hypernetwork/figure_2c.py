"""Figures 2C and A3 of the paper: fuzzy logic with other numbers of examples and other fractions held out.

The paper prints curves and no numbers for them, so the claims are its sentences, with bounds of our choice. The grid is cut
to what is telling, and runs are shared with other experiments where they are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recombine.sweeps import Record, Setting
from recombine.tasks import Scale
from recombine.training import default_run
from recombine_papers.claims import Fall, Lead, Level
from recombine_papers.hypernetwork.claims import FallsLess
from recombine_papers.hypernetwork.fuzzy_logic import (
    ATTENTIONS,
    LEAD,
    RELEASE_DROPOUT,
    SHORT_STEPS,
    change_model,
    change_task,
    claim_close_on_trained,
    with_steps,
)
from recombine_papers.hypernetwork.sraven import FIRST_ATTENTIONS, SOLVED, SeveralSeeds
from recombine_papers.learning_curves import NAMES

EXAMPLES_AND_HELD_OUT = (
    (32, 0.7),
    (32, 0.3),
    (16, 0.7),
    (96, 0.7),
)  # tokens per sequence with the query; the most telling


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
            Fall(
                text="scores fall when 70 % are held out instead of 30 % (32 tokens, the query included)",
                where=NAMES[attention],
                source="section 3, figure 2C",
                higher={"attention": attention, "examples": 32, "held_out": 0.3},
                lower={"attention": attention, "examples": 32, "held_out": 0.7},
                by=LEAD,
            )
            for attention in ATTENTIONS
        ),
        *(
            Fall(
                text="more examples help: 96 tokens against 16 (70 % held out)",
                where=NAMES[attention],
                source="section 3, figure 2C",
                higher={"attention": attention, "examples": 96, "held_out": 0.7},
                lower={"attention": attention, "examples": 16, "held_out": 0.7},
                by=LEAD,
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
