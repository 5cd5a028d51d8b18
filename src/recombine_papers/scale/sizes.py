"""Sizes, encodings and grid worlds of Scaling can lead to compositional generalization (arXiv 2507.07207).

Width and training compositions together (`scale-surface`), the main figure of the paper. Scale is claimed to lead to
recombination; width alone, with few training compositions, should not be enough, and neither should many compositions without
width. Rows and columns that `scale-width` and `scale-compositions` have are the same runs.

Encodings (`scale-encodings`): does a network recombine modules however the task is encoded, and does width help? Encodings that
are not linear in the strengths of the modules take longer. At `small` the networks are therefore wider and trained for more
steps than those of the other experiments. A network that does not fit trained compositions says nothing about held-out ones.

The size of the task and the depth of the network (`scale-modules`, `scale-depth`). The released code varies the number of
modules (8 to 32), of modules that are active together (2 to 7) and of layers (2 and 4). Networks have the width and the steps of
`scale-encodings`, and the plain setting is a run of that experiment.

Grid worlds (`scale-grids`): which preferences or goals must be trained for a network to act on new mixtures of them? The
preference grid is trained on supports that cover and connect the preferences, and on two that do not. The goal grid was
released without a sweep; its control gives every goal an arbitrary code, which does not say what a held-out goal asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from recombine.sweeps import Record
from recombine.tasks import Encoding, Scale, canvas
from recombine.training import RunConfig, default_run
from recombine_papers.base import Finished
from recombine_papers.claims import Gap, Lead, Level
from recombine_papers.experiment import SeededExperiment
from recombine_papers.scale.runs import (
    ABSTRACT,
    BETTER,
    GOOD,
    HELD_OUT,
    SOURCE,
    SUCCESS,
    ScaleExperiment,
    change,
    hyperteacher,
)
from recombine_papers.scale.tables import METRIC

SURFACE_WIDTHS: dict[Scale, tuple[int, ...]] = {
    "tiny": (16, 256),
    "small": (16, 64, 128, 512),
    "paper": (128, 512, 2048),
}
DARK = 0.8  # numbers on a darker ground are white
SMALLEST, LARGEST = {"width": 16, "compositions": 14}, {"width": 512, "compositions": 81}  # the corners at `small`


class Surface(ScaleExperiment):
    """Every width with every number of training compositions."""

    name = "scale-surface"
    core_hours = (0.013, 0.27, None)
    question = "Do width and training compositions together lead to recombination?"
    known_before = "one row and one column of the surface."
    claims = (
        Level(
            text="wide networks with enough data recombine modules",
            source=ABSTRACT,
            of=LARGEST,
            low=SUCCESS,
        ),
        *(
            Lead(
                text=text,
                source=f"{ABSTRACT}: scaling data and model size",
                better=LARGEST,
                worse={**LARGEST, smaller: SMALLEST[smaller]},
                by=BETTER,
                paired=False,
            )
            for smaller, text in (
                ("width", "data alone is not enough: width 16 against 512, both with 81 compositions"),
                ("compositions", "width alone is not enough: 14 compositions against 81, both with width 512"),
            )
        ),
        Gap(
            text="a wide network with 14 compositions fits them and fails on others",
            source=ABSTRACT,
            of={**LARGEST, "compositions": SMALLEST["compositions"]},
            by=BETTER,
        ),
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for width in SURFACE_WIDTHS[scale]:
            for held_out in HELD_OUT[scale]:
                config = change(hyperteacher(scale), {"hidden_dim": width}, held_out=held_out)
                yield Record(settings={"width": width, "compositions": len(config.task.split.train)}, config=config)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_surface(finished, folder)


def draw_surface(finished: Finished, folder: Path) -> list[Path]:
    """R² on held-out and on trained compositions, a map each: width to the right, training compositions upwards."""
    path = folder / "scale_surface.png"
    axis = {
        name: sorted({int(group.settings[name]) for group in finished.groups}) for name in ("width", "compositions")
    }
    with canvas(path, 8, 3.2) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (split, title) in zip(
            panels, {"ood": "held-out compositions", "test": "trained compositions"}.items(), strict=True
        ):
            rows = [[float("nan")] * len(axis["width"]) for _ in axis["compositions"]]
            for group in finished.groups:
                row = axis["compositions"].index(int(group.settings["compositions"]))
                column = axis["width"].index(int(group.settings["width"]))
                rows[row][column] = fmean(group.scores(split, METRIC))
                colour = "white" if rows[row][column] > DARK else "black"
                axes.text(column, row, f"{rows[row][column]:.2f}", ha="center", va="center", fontsize=8, color=colour)
            image = axes.imshow(rows, origin="lower", aspect="auto", cmap="YlGnBu")
            image.set_clim(0.4, 1.0)
            axes.set_xticks(range(len(axis["width"])), map(str, axis["width"]))
            axes.set_yticks(range(len(axis["compositions"])), map(str, axis["compositions"]))
            axes.set(xlabel="width", title=f"R² of {title}")
        panels[0].set_ylabel("training compositions")
    return [path]


FITTED = 0.97  # R² on trained compositions that counts as fitted
LONG_WIDTH, LONG_STEPS = 512, 20_000  # at `small`
NARROW: dict[Scale, int] = {"tiny": 16, "small": 16, "paper": 128}
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)


def train_longer(run: RunConfig, scale: Scale) -> RunConfig:
    """The run with a width and a number of steps at which it can fit harder settings too; the paper's has them already."""
    if scale != "small":
        return run
    training = replace(run.training, steps=LONG_STEPS, precision="bf16")
    return replace(change(run, {"hidden_dim": LONG_WIDTH}), training=training)


class Encodings(ScaleExperiment):
    """The six encodings of the paper, with a width and a number of steps at which trained compositions can be fitted."""

    name = "scale-encodings"
    core_hours = (0.016, 1.3, None)
    question = "Does it matter how the task is encoded for the network?"
    differs = "8 modules and inputs instead of 16; 20,000 steps of width 512 at a higher rate instead of 300,000; bf16."
    known_before = (
        "one seed of four encodings at width 256 and 6,000 steps (held out 0.69 to 0.92). The condition that trained "
        "compositions are fitted was a row of its own, and became part of the claim when all wide networks were known."
    )
    claims = tuple(
        claim
        for encoding in ENCODINGS
        for claim in (
            Level(
                text="a network recombines modules whatever the encoding",
                where=encoding.replace("_", " "),
                source=ABSTRACT,
                of={"encoding": encoding, "width": "wide"},
                low=GOOD,
                fitted=FITTED,
            ),
            Lead(
                text="wider networks recombine better whatever the encoding",
                where=f"{encoding.replace('_', ' ')}, width 512 against 16",
                source=ABSTRACT,
                better={"encoding": encoding, "width": "wide"},
                worse={"encoding": encoding, "width": "narrow"},
                by=BETTER,
            ),
            Level(
                text="the network fits trained compositions",
                where=encoding.replace("_", " "),
                source="condition of the claim above",
                of={"encoding": encoding, "width": "wide"},
                split="test",
                low=FITTED,
                ours=True,
            ),
        )
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        configs = {encoding: change(hyperteacher(scale), encoding=encoding) for encoding in ENCODINGS}
        for encoding, config in configs.items():
            yield Record(settings={"encoding": encoding, "width": "wide"}, config=train_longer(config, scale))
        for encoding, config in configs.items():
            narrow = change(train_longer(config, scale), {"hidden_dim": NARROW[scale]})
            yield Record(settings={"encoding": encoding, "width": "narrow"}, config=narrow)


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
            Level(
                text="a network recombines modules whatever their number",
                where=f"{modules} modules",
                source=SWEEP,
                of={"modules": modules, "active": NUM_ACTIVE},
                low=GOOD,
                fitted=FITTED,
                known=modules == MODULES["small"][0],
            )
            for modules in MODULES["small"]
        ),
        *(
            Level(
                text="a network recombines modules however many are active",
                where=f"up to {active} of {MODULES['small'][0]} modules",
                source=SWEEP,
                of={"modules": MODULES["small"][0], "active": active},
                low=GOOD,
                fitted=FITTED,
                known=active == NUM_ACTIVE,
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
        Level(
            text="a network recombines modules whatever its depth",
            where=f"{layers} layers",
            source=SWEEP,
            of={"layers": layers},
            low=GOOD,
            fitted=FITTED,
            known=layers == DEPTHS[0],
        )
        for layers in DEPTHS
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for layers in DEPTHS:
            config = change(hyperteacher(scale), {"num_layers": layers})
            yield Record(settings={"layers": layers}, config=train_longer(config, scale))


GRID_STEPS: dict[Scale, int] = {"tiny": 1_500, "small": 6_000, "paper": 3_000_000}
SUPPORTS = ("random", "disconnected", "non_compositional")
GOALS = ("instruction", "arbitrary")
LOWER = 0.05  # of the steps


class Grids(SeededExperiment):
    """Both grids, the most important variants first."""

    name = "scale-grids"
    core_hours = (0.014, 1, 2100)
    question = "Do networks act on new mixtures of preferences and on new goals?"
    metric = "action_accuracy"
    differs = (
        "8 preferences instead of 16; goals in mazes of 7 × 7 instead of 11 × 11; 6,000 steps instead of 3 million."
    )
    claims = (
        *(
            Lead(
                text=f"preferences must be {word} in training: {support.replace('_', '-')} support against a random one",
                source=SOURCE,
                better={"task": "preference_grid", "variant": "random"},
                worse={"task": "preference_grid", "variant": support},
                by=LOWER,
                paired=False,
            )
            for support, word in (("disconnected", "connected"), ("non_compositional", "covered"))
        ),
        *(
            Gap(
                text="a network acts on new mixtures as on trained ones",
                where=task.replace("_", " "),
                source=SOURCE,
                of={"task": task, "variant": variant},
                by=LOWER,
                at_most=True,
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
        Lead(
            text="networks recombine goals better if they are given as instructions than as arbitrary codes",
            source="our question",
            better={"task": "goal_grid", "variant": "instruction"},
            worse={"task": "goal_grid", "variant": "arbitrary"},
            by=0.2,
            ours=True,
            paired=False,
        ),
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for task, field, values in (("preference_grid", "support", SUPPORTS), ("goal_grid", "encoding", GOALS)):
            base = default_run(task, scale)
            training = replace(base.training, steps=GRID_STEPS[scale])
            for value in values:
                choice: dict[str, Any] = {field: value}
                config = replace(base, task=replace(base.task, **choice), training=training)
                yield Record(settings={"task": task, "variant": value}, config=config)
