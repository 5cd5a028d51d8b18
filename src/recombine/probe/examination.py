"""What an examination gathers on its way: numbers for `probe.json`, arrays for `probe.npz`, times, and reasons for gaps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from recombine.errors import InputError
from recombine.probe.observations import Observations
from recombine.probe.schema import ProbeNumbers
from recombine.probe.sites import describe_site
from recombine.tasks.reading import Reading

FORMAT_VERSION = 2  # of the numbers; raise it when their keys or their meaning change

Part = Literal["collect", "decode", "structure", "tsne", "ablate", "swap"]
Say = Callable[[str], None]


def say_nothing(_: str) -> None:
    """The default of `say`: no progress messages."""


def start_numbers(num_instances: int, reading: Reading | None = None) -> ProbeNumbers:
    """Numbers before anything was observed."""
    numbers: ProbeNumbers = {
        "version": FORMAT_VERSION,
        "num_instances": num_instances,
        "modules": [],
        "num_compositions": {"fit": 0, "id": 0, "ood": 0},
        "sites": [],
        "skipped": {},
        "seconds": {},
        "tsne_share": 0.0,
    }
    if reading is not None:
        words = {"instances": reading.instances, "codes": reading.codes, "labels": reading.labels}
        numbers["reading"] = cast(Any, words)
    return numbers


@dataclass(kw_only=True)
class Examination:
    """What was found: numbers for `probe.json` (see `schema`), arrays for `probe.npz`."""

    numbers: ProbeNumbers
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    say: Say = say_nothing

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time a part. If the model or the data does not allow it, record the reason and go on."""
        self.say(name)
        start = time.perf_counter()
        try:
            yield
        except InputError as error:
            self.numbers["skipped"][name] = str(error)
        seconds = self.numbers["seconds"]
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - start, 3)

    def describe(self, observations: Observations) -> None:
        """Record what was observed, and what could not be."""
        numbers = self.numbers
        numbers["skipped"] |= observations.skipped
        if not observations.count_compositions("ood"):
            numbers["skipped"]["ood"] = "there are no rows of ood: nothing can be said about new compositions"
        numbers["modules"] = list(observations.modules)
        numbers["num_compositions"] = {
            "fit": observations.count_compositions("fit"),
            "id": observations.count_compositions("id"),
            "ood": observations.count_compositions("ood"),
        }
        numbers["sites"] = [describe_site(name) for name in observations.activations]

    def close(self) -> Examination:
        """Add up the times, and replace NaN and infinity, which JSON cannot hold, by None."""
        self.numbers = _finite(self.numbers)
        seconds = self.numbers["seconds"]
        total = round(sum(cast(dict[str, float], seconds).values()), 3)
        seconds["total"] = total
        self.numbers["tsne_share"] = round(seconds.get("tsne", 0.0) / max(total, 1e-9), 4)
        return self


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
