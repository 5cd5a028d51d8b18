"""The clock of a training, which goes on where a checkpoint stopped it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypedDict


class ClockState(TypedDict):
    """What a checkpoint holds of a clock."""

    seconds: float
    timed_steps: int
    timed_seconds: float


@dataclass(kw_only=True)
class Clock:
    """Seconds spent in training, and steps per second without the warm-up of each process that trained."""

    seconds: float = 0.0
    timed_steps: int = 0
    timed_seconds: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def add(self, steps: int, *, warm: bool) -> None:
        now = time.perf_counter()
        self.seconds += now - self._last
        if warm:
            self.timed_steps += steps
            self.timed_seconds += now - self._last
        self._last = now

    def skip(self) -> None:
        """Do not count the time since the last call, which was spent on evaluation or saving."""
        self._last = time.perf_counter()

    @property
    def steps_per_second(self) -> float:
        return self.timed_steps / self.timed_seconds if self.timed_seconds else 0.0

    def state(self) -> ClockState:
        """What a resumed run continues from."""
        return {"seconds": self.seconds, "timed_steps": self.timed_steps, "timed_seconds": self.timed_seconds}
