"""Experiment trackers by name: TensorBoard, and Weights & Biases. The package of each is an extra of the same name.

A tracker records the rows of `metrics.jsonl` while a run trains, and the scores of `result.json` at its end, one record per
run directory: a resumed run continues its record.
"""

from __future__ import annotations

import json
import os
from typing import Any, Literal, get_args

from recombine.foundation.errors import InputError, check_choice, import_extra
from recombine.training.directory import RunDirectory
from recombine.training.schema import MetricsRow, ResultFile
from recombine.training.session import Tracker

TrackerName = Literal["tensorboard", "wandb"]


def build_tracker(name: str) -> Tracker:
    """A tracker by name; its package must be installed."""
    check_choice("tracker", name, get_args(TrackerName))
    import_extra(name, extra=name, user=f"tracker {name!r}")
    trackers: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
    return trackers[name]()


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of the run directory. `tensorboard --logdir runs` shows all runs."""

    name = "tensorboard"

    def start(self, run: RunDirectory, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.path / "tensorboard"
        if folder.is_symlink():
            raise InputError(f"{folder} is a link: expected a folder, since a run writes to no other place")
        # hides rows that an earlier process wrote after this step, because they will be written again
        self.writer = SummaryWriter(str(folder), purge_step=step + 1)
        if step == 0:
            self.writer.add_text("config", f"```\n{json.dumps(run.config, indent=2)}\n```", 0)

    def add(self, row: MetricsRow) -> None:
        for name, value in flatten_row(row).items():
            self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()

    def finish(self, result: ResultFile) -> None:
        for name, value in flatten_scores(result).items():
            self.writer.add_scalar(name, value, result["steps"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run whose id is the name of the run directory. Set WANDB_MODE=offline to keep the record on disk."""

    name = "wandb"

    def start(self, run: RunDirectory, step: int) -> None:
        import wandb

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
        # our step instead of that of wandb, which may only grow: a resumed run repeats the rows after its checkpoint
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def add(self, row: MetricsRow) -> None:
        self.run.log({"step": row["step"], **flatten_row(row)})

    def finish(self, result: ResultFile) -> None:
        self.run.summary.update(flatten_scores(result))

    def close(self) -> None:
        self.run.finish()


def flatten_row(row: MetricsRow) -> dict[str, float]:
    """A row of `metrics.jsonl`: loss, learning_rate, seconds, ood/accuracy."""
    numbers: dict[str, Any] = {name: value for name, value in row.items() if name not in ("step", "scores")}
    scores = row.get("scores", {}).items()
    return numbers | {f"{split}/{name}": value for split, metrics in scores for name, value in metrics.items()}


def flatten_scores(result: ResultFile) -> dict[str, float]:
    """The scores of `result.json`: final/ood/accuracy."""
    scores: Any = result["scores"]
    return {
        f"final/{split}/{name}": score["value"] for split, metrics in scores.items() for name, score in metrics.items()
    }
