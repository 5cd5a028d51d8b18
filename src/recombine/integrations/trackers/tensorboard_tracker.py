"""TensorBoard: event files in the folder `tensorboard` of the run directory. `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import json

from torch.utils.tensorboard import SummaryWriter

from recombine.foundation.errors import InputError
from recombine.integrations.trackers import flatten_row, flatten_scores
from recombine.training.directory import RunDirectory
from recombine.training.run import Tracker
from recombine.training.schema import MetricsRow, ResultFile


class TensorBoard(Tracker):
    """Writes an event file."""

    name = "tensorboard"
    writer: SummaryWriter

    def start(self, run: RunDirectory, step: int) -> None:
        folder = run.path / "tensorboard"
        if folder.is_symlink():
            raise InputError(f"{folder} is a link: expected a folder, since a run writes to no other place")
        # what an earlier process wrote after the step is hidden, because it comes again
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)
        if step == 0:
            self.writer.add_text("config", f"```\n{json.dumps(run.config, indent=2)}\n```", 0)

    def add(self, row: MetricsRow) -> None:
        for name, value in flatten_row(row).items():
            self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()

    def finish(self, result: ResultFile) -> None:
        for name, value in flatten_scores(result["scores"]).items():
            self.writer.add_scalar(name, value, result["steps"])

    def close(self) -> None:
        self.writer.close()


def build() -> Tracker:
    """The adapter."""
    return TensorBoard()
