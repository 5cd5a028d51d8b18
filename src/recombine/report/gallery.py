"""Instances of held-out compositions that a run gets right and wrong: the first few of each, in the order of the stream.

Predictions are not stored with a run, so the network is rebuilt from its checkpoint and evaluated here on a few dozen
instances. The task defines what is right and how an instance is drawn. If a run cannot be rebuilt, a sentence says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recombine.drawing.card import Card
from recombine.errors import InputError
from recombine.report.runs import ReportRun
from recombine.run import load_run

NUM_ASKED = 64
NUM_SHOWN = 4  # right instances, and as many wrong ones


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The cards of a run, and the number of right answers among all that were evaluated."""

    task: str
    right: list[Card]
    wrong: list[Card]
    num_right: int
    num_asked: int
    meaning: str  # of right


def read_gallery(run: ReportRun) -> Gallery | None:
    """The gallery of a run, or None if there is no checkpoint."""
    if not (run.directory.path / "checkpoint.safetensors").exists():
        return None
    try:
        return make_gallery(run)
    except InputError:
        raise
    except Exception as error:  # an error in a network or a task must not prevent the report
        raise InputError(
            f"its network could not be evaluated ({type(error).__name__}): expected a run of this version"
        ) from None


def make_gallery(run: ReportRun) -> Gallery:
    try:
        _, config, model = load_run(run.directory.path, "cpu", code=run.code)
    except InputError as error:
        raise InputError(str(error).replace(str(run.directory.path), "the run")) from None
    task = config.task
    batch = task.sample("ood", 0, batch_size=NUM_ASKED)
    with torch.no_grad():
        answers, right = task.judge(model(batch.inputs), batch)
    chosen = [torch.nonzero(right == wanted)[:NUM_SHOWN, 0].tolist() for wanted in (True, False)]
    cards = [[task.card(batch, row, answers[row]) for row in rows] for rows in chosen]
    return Gallery(
        task=task.name,
        right=cards[0],
        wrong=cards[1],
        num_right=int(right.sum()),
        num_asked=NUM_ASKED,
        meaning=task.right_means,
    )
