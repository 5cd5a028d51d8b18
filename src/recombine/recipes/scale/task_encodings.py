"""The encodings of the task: whether a network recombines modules however the task is encoded, and whether width helps.

Encodings that are not linear in the strengths of the modules take longer. At `small` the networks are therefore wider and
trained for more steps than those of the other experiments. A network that does not fit trained compositions says nothing
about held-out ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from recombine.recipes.claims import Lead, Level
from recombine.recipes.experiment import Record
from recombine.recipes.measured_claims import FittedLevel
from recombine.recipes.scale.runs import ABSTRACT, BETTER, GOOD, ScaleExperiment, change, hyperteacher
from recombine.run import RunConfig
from recombine.tasks.base import Scale
from recombine.tasks.modular.encodings import Encoding

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
