"""The progress bar of a training, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recombine.train import Progress as TrainingProgress
from recombine.train import Watcher


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Watcher | None]:
    """Show the steps, the loss, the speed and the remaining time; the watcher is for `train_run` or `benchmark`."""
    if quiet:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    row = bar.add_task(label, total=None, note="")

    def watch(progress: TrainingProgress) -> None:
        bar.start()  # only now, so that an error before the first step is printed alone
        note = f"loss {progress.loss:.4g}  {progress.steps_per_second:.1f} steps/s"
        bar.update(row, total=progress.steps, completed=progress.step, note=note)

    try:
        yield watch
    finally:
        if bar.live.is_started:
            bar.stop()
