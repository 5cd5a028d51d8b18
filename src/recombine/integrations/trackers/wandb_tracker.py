"""Weights & Biases: one run per run directory, resumed with it. Set WANDB_MODE=offline to keep the record on disk."""

from __future__ import annotations

import os
from typing import Any

import wandb

from recombine.foundation.errors import InputError
from recombine.integrations.trackers import flatten_row, flatten_scores
from recombine.training.directory import RunDirectory
from recombine.training.run import Tracker
from recombine.training.schema import MetricsRow, ResultFile


class WeightsAndBiases(Tracker):
    """Sends rows to a run whose id is the name of the run directory."""

    name = "wandb"

    def start(self, run: RunDirectory, step: int) -> None:
        try:
            self.run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "recombine"),
                id=run.path.name[-64:],
                name=run.path.name,
                dir=str(run.path),
                config=run.config,
                resume="allow",
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            reason = str(error).split("\n")[0]
            raise InputError(f"wandb cannot start ({reason}): expected a login, or WANDB_MODE=offline") from None
        # our step, not that of wandb, which may only grow: a resumed run repeats the rows after its checkpoint
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def add(self, row: MetricsRow) -> None:
        self.run.log({"step": row["step"], **flatten_row(row)})

    def finish(self, result: ResultFile) -> None:
        self.run.summary.update(flatten_scores(result["scores"]))

    def close(self) -> None:
        self.run.finish()


def build() -> Tracker:
    """The adapter."""
    return WeightsAndBiases()
