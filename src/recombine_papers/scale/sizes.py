"""The grid worlds of the paper: which preferences or goals must be trained for a network to act on new mixtures of them.

The preference grid is trained on supports that cover and connect the preferences, and on two that do not. The goal grid was
released without a sweep; its control gives every goal an arbitrary code, which does not say what a held-out goal asks for.

The size of the task and of the network: modules, modules that are active together, and layers.

The released code varies all three (8 to 32 modules, 2 to 7 of them active, 2 and 4 layers). Networks have the width and the
steps of `scale-encodings`, and the plain setting is a run of that experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recombine.sweeps import Record, over_seeds
from recombine.tasks import Scale
from recombine.training import default_run
from recombine_papers.claims import Fall
from recombine_papers.experiment import PaperExperiment
from recombine_papers.measured_claims import FittedLevel, Gap, NoGap
from recombine_papers.scale.runs import GOOD, NUM_SEEDS, SOURCE, ScaleExperiment, change, hyperteacher
from recombine_papers.scale.surface import FITTED, Encodings, train_longer

STEPS: dict[Scale, int] = {"tiny": 1_500, "small": 6_000, "paper": 3_000_000}
SUPPORTS = ("random", "disconnected", "non_compositional")
ENCODINGS = ("instruction", "arbitrary")
LOWER = 0.05  # of the steps


class Grids(PaperExperiment):
    """Both grids; the order is that of worth, and all of it with the first seed comes first."""

    name = "scale-grids"
    core_hours = (0.014, 1, 2100)
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


SWEEP = f"{SOURCE}, a sweep of the released code"
MODULES: dict[Scale, tuple[int, ...]] = {"tiny": (8, 16, 24), "small": (8, 16, 24), "paper": (8, 16, 24, 32)}
NUM_ACTIVE = 3  # where the number of modules varies
ACTIVE = (2, 4)  # of the smallest number of modules
DEPTHS = (2, 4)


class Modules(ScaleExperiment):
    """More modules, and more or fewer of them active together."""

    name = "scale-modules"
    core_hours = (0.0041, 0.31, None)
    question = "Do networks recombine modules whatever their number?"
    differs = Encodings.differs.replace("8 modules and inputs", "8 to 24 modules and 8 inputs")
    known_before = "the runs with 8 modules and 3 active ones, which are those of `scale-encodings`."
    claims = (
        *(
            FittedLevel(
                text="a network recombines modules whatever their number",
                where=f"{modules} modules",
                source=SWEEP,
                of={"modules": modules, "active": NUM_ACTIVE},
                low=GOOD,
                fitted=FITTED,
            )
            for modules in MODULES["small"]
        ),
        *(
            FittedLevel(
                text="a network recombines modules however many are active",
                where=f"up to {active} of {MODULES['small'][0]} modules",
                source=SWEEP,
                of={"modules": MODULES["small"][0], "active": active},
                low=GOOD,
                fitted=FITTED,
            )
            for active in (ACTIVE[0], NUM_ACTIVE, ACTIVE[1])
        ),
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        fewest = MODULES[scale][0]
        sizes = [*((modules, NUM_ACTIVE) for modules in MODULES[scale]), *((fewest, active) for active in ACTIVE)]
        for modules, active in sizes:
            config = change(hyperteacher(scale), num_modules=modules, num_active=active)
            yield Record(settings={"modules": modules, "active": active}, config=train_longer(config, scale))


class Depths(ScaleExperiment):
    """Two and four hidden layers."""

    name = "scale-depth"
    core_hours = (0.0027, 0.26, None)
    question = "Do deep networks recombine modules as shallow ones do?"
    differs = Encodings.differs
    known_before = "the runs with 2 layers, which are those of `scale-encodings`."
    claims = tuple(
        FittedLevel(
            text="a network recombines modules whatever its depth",
            where=f"{layers} layers",
            source=SWEEP,
            of={"layers": layers},
            low=GOOD,
            fitted=FITTED,
        )
        for layers in DEPTHS
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for layers in DEPTHS:
            config = change(hyperteacher(scale), {"num_layers": layers})
            yield Record(settings={"layers": layers}, config=train_longer(config, scale))
