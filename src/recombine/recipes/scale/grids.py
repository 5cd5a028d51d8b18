"""The grid worlds of the paper: which preferences or goals must be trained for a network to act on new mixtures of them.

The preference grid is trained on supports that cover and connect the preferences, and on two that do not. The goal grid was
released without a sweep; its control gives every goal an arbitrary code, which does not say what a held-out goal asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recombine.recipes.claims import Fall
from recombine.recipes.experiment import Experiment, Record, over_seeds
from recombine.recipes.measured_claims import Gap, NoGap
from recombine.recipes.scale.runs import NUM_SEEDS, SOURCE
from recombine.run import default_run
from recombine.tasks.base import Scale

STEPS: dict[Scale, int] = {"tiny": 1_500, "small": 6_000, "paper": 3_000_000}
SUPPORTS = ("random", "disconnected", "non_compositional")
ENCODINGS = ("instruction", "arbitrary")
LOWER = 0.05  # of the steps


class Grids(Experiment):
    """Both grids; the order is that of worth, and all of it with the first seed comes first."""

    name = "scale-grids"
    question = "Do networks act on new mixtures of preferences and on new goals?"
    metric = "action_accuracy"
    differs = (
        "8 preferences instead of 16; goals in mazes of 7 × 7 instead of 11 × 11; 6,000 steps instead of 3 million."
    )
    claims = (
        *(
            Fall(
                text=f"preferences must be {word} in training: {support.replace('_', '-')} support against a random one",
                source=SOURCE,
                higher={"task": "preference_grid", "variant": "random"},
                lower={"task": "preference_grid", "variant": support},
                by=LOWER,
            )
            for support, word in (("disconnected", "connected"), ("non_compositional", "covered"))
        ),
        *(
            NoGap(
                text="a network acts on new mixtures as on trained ones",
                where=task.replace("_", " "),
                source=SOURCE,
                of={"task": task, "variant": variant},
                by=LOWER,
            )
            for task, variant in (("preference_grid", "random"), ("goal_grid", "instruction"))
        ),
        Gap(
            text="networks do not recombine goals given as arbitrary codes",
            source="our question",
            of={"task": "goal_grid", "variant": "arbitrary"},
            by=0.2,
            ours=True,
        ),
        Fall(
            text="networks recombine goals better if they are given as instructions than as arbitrary codes",
            source="our question",
            higher={"task": "goal_grid", "variant": "instruction"},
            lower={"task": "goal_grid", "variant": "arbitrary"},
            by=0.2,
            ours=True,
        ),
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        return over_seeds(self.variants(scale), range(NUM_SEEDS[scale]))

    def variants(self, scale: Scale) -> Iterator[Record]:
        for task, field, values in (("preference_grid", "support", SUPPORTS), ("goal_grid", "encoding", ENCODINGS)):
            base = default_run(task, scale)
            training = replace(base.training, steps=STEPS[scale])
            for value in values:
                change: dict[str, Any] = {field: value}
                config = replace(base, task=replace(base.task, **change), training=training)
                yield Record(settings={"task": task, "variant": value}, config=config)
