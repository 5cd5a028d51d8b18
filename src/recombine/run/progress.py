"""The progress of a training, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from recombine.progress import measure_progress, show_progress
from recombine.train import Progress as TrainingProgress
from recombine.train import Watcher


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Watcher | None]:
    """Show the steps, the loss, the speed and the remaining time; the watcher is for `train_run` or `benchmark`."""
    if quiet:
        with show_progress(False):
            yield None
        return
    with show_progress(), measure_progress(label, done=None) as meter:

        def watch(progress: TrainingProgress) -> None:
            note = f"loss {progress.loss:.4g}  {progress.steps_per_second:.1f} steps/s"
            meter.update(progress.step, progress.steps, note)

        yield watch
