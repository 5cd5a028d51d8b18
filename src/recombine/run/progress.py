"""The progress of a training, on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from recombine.progress import Meter, measure_progress, show_progress
from recombine.train import Progress as TrainingProgress

PULSE_SECONDS = 1.0  # between two updates within a logging interval


class TrainingBar:
    """A watcher for `train_run` or `benchmark` that shows the steps, the loss, the speed and the remaining time."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.last = meter, 0.0

    def __call__(self, progress: TrainingProgress) -> None:
        speed = progress.steps_per_second  # 0 in the first steps, which are not timed
        shown = f"  {speed:.1f} steps/s" if speed >= 1 else f"  {speed:.2g} steps/s" if speed else ""
        self.meter.update(progress.step, progress.steps, f"loss {progress.loss:.4g}{shown}")

    def pulse(self, step: int, steps: int) -> None:
        """Called before every step: with slow steps, the next row of metrics may be an hour away."""
        if (now := time.monotonic()) - self.last >= PULSE_SECONDS:
            self.last = now
            self.meter.update(step, steps, self.meter.note)


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[TrainingBar | None]:
    """Show the progress of a training inside a `with` block; with `quiet`, nothing is shown and there is no watcher."""
    if quiet:
        with show_progress(False):
            yield None
        return
    with show_progress(), measure_progress(label, done=None) as meter:
        yield TrainingBar(meter)
