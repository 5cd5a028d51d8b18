"""Width and training compositions together: the main figure of the paper, as a surface.

The paper claims that scale leads to recombination. Width alone, with few training compositions, should not be enough, and
neither should many compositions without width. Rows and columns of the surface that `scale-width` and `scale-compositions`
have are the same runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from recombine.drawing.canvas import canvas
from recombine.recipes.claims import Fall, Level
from recombine.recipes.experiment import Finished, Record
from recombine.recipes.measured_claims import Gap
from recombine.recipes.scale.runs import ABSTRACT, BETTER, HELD_OUT, SUCCESS, ScaleExperiment, change, hyperteacher
from recombine.recipes.scale.tables import METRIC
from recombine.tasks.base import Scale

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
