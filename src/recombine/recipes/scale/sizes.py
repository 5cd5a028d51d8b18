"""The size of the task and of the network: modules, modules that are active together, and layers.

The released code varies all three (8 to 32 modules, 2 to 7 of them active, 2 and 4 layers). Networks have the width and the
steps of `scale-encodings`, and the plain setting is a run of that experiment.
"""

from __future__ import annotations

from collections.abc import Iterator

from recombine.recipes.experiment import Record
from recombine.recipes.measured_claims import FittedLevel
from recombine.recipes.scale.runs import GOOD, SOURCE, ScaleExperiment, change, hyperteacher
from recombine.recipes.scale.task_encodings import FITTED, Encodings, train_longer
from recombine.tasks.base import Scale

SWEEP = f"{SOURCE}, a sweep of the released code"
MODULES: dict[Scale, tuple[int, ...]] = {"tiny": (8, 16, 24), "small": (8, 16, 24), "paper": (8, 16, 24, 32)}
NUM_ACTIVE = 3  # where the number of modules varies
ACTIVE = (2, 4)  # of the smallest number of modules
DEPTHS = (2, 4)


class Modules(ScaleExperiment):
    """More modules, and more or fewer of them active together."""

    name = "scale-modules"
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
