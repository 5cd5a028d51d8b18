"""Width and training compositions together: the main figure of the paper, as a surface.

The paper claims that scale leads to recombination. Width alone, with few training compositions, should not be enough, and
neither should many compositions without width. Rows and columns of the surface that `scale-width` and `scale-compositions`
have are the same runs.

The encodings of the task: whether a network recombines modules however the task is encoded, and whether width helps.

Encodings that are not linear in the strengths of the modules take longer. At `small` the networks are therefore wider and
trained for more steps than those of the other experiments. A network that does not fit trained compositions says nothing
about held-out ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import get_args

from recombine.sweeps import Finished, Record
from recombine.tasks import Encoding, Scale, canvas
from recombine.training import RunConfig
from recombine_papers.claims import Fall, Lead, Level
from recombine_papers.measured_claims import FittedLevel, Gap
from recombine_papers.scale.runs import ABSTRACT, BETTER, GOOD, HELD_OUT, SUCCESS, ScaleExperiment, change, hyperteacher
from recombine_papers.scale.tables import METRIC

SURFACE_WIDTHS: dict[Scale, tuple[int, ...]] = {
    "tiny": (16, 256),
    "small": (16, 64, 128, 512),
    "paper": (128, 512, 2048),
}
DARK = 0.8  # numbers on a darker ground are white
LEAST, MOST = {"width": 16, "compositions": 14}, {"width": 512, "compositions": 81}  # the corners at `small`


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
            headline=True,
            of=MOST,
            low=SUCCESS,
        ),
        Fall(
            text="data alone is not enough: width 16 against 512, both with 81 compositions",
            source=f"{ABSTRACT}: scaling data and model size",
            higher=MOST,
            lower={**MOST, "width": LEAST["width"]},
            by=BETTER,
        ),
        Fall(
            text="width alone is not enough: 14 compositions against 81, both with width 512",
            source=f"{ABSTRACT}: scaling data and model size",
            higher=MOST,
            lower={**MOST, "compositions": LEAST["compositions"]},
            by=BETTER,
        ),
        Gap(
            text="a wide network with 14 compositions fits them and fails on others",
            source=ABSTRACT,
            of={**MOST, "compositions": LEAST["compositions"]},
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
ENCODINGS: tuple[Encoding, ...] = tuple(name for name in get_args(Encoding) if name != "active_tokens")


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
            FittedLevel(
                text="a network recombines modules whatever the encoding",
                where=encoding.replace("_", " "),
                headline=True,
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
