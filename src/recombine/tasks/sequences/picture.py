"""A sequence and its teacher's outputs as a picture, with the longest trained length marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recombine.drawing.tokens import Panel, draw_tokens
from recombine.tasks.base import Batch

if TYPE_CHECKING:
    from recombine.tasks.sequences.teacher import SequenceTeacher


def draw_labelled(task: SequenceTeacher, batch: Batch, row: int, path: Path | str) -> None:
    """Tokens and outputs; the outputs that the score is about are framed."""
    length = int(batch.info["length"][row])
    x, y = (values[row, :length].detach().cpu().T.numpy() for values in (batch.inputs, batch.targets))
    trained = min(length, task.max_length)
    parts = [("trained", trained), ("positions that are never trained", length - trained)]
    composition = task.describe(tuple(batch.latents[row].tolist()))
    draw_tokens(
        path,
        title=f"{composition}, labelled by a teacher of class {task.teacher}",
        panels=[Panel("tokens x", x), Panel("outputs y", y, asked=range(length - 1, length))],
        parts=parts if length > trained else [(f"{length} tokens", length)],
        framed="the output that is scored; all are trained",
    )
