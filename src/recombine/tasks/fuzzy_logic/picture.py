"""An instance of fuzzy logic as a picture: the variables and the value of the function, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recombine.drawing.tokens import Panel, draw_tokens
from recombine.tasks.base import Batch

if TYPE_CHECKING:
    from recombine.tasks.fuzzy_logic.task import FuzzyLogic


def draw_function(task: FuzzyLogic, batch: Batch, row: int, path: Path | str) -> None:
    """Examples, then the query, whose value is framed."""
    values = batch.inputs[row].detach().cpu().clone()
    values[-1, -1] = batch.targets[row].item()
    names = tuple(f"x{number + 1}" for number in range(task.num_variables))
    tokens = len(values)
    draw_tokens(
        path,
        title=f"f = {task.describe(tuple(batch.latents[row].tolist()))}",
        panels=[
            Panel("variables", values[:, :-1].T.numpy(), names),
            Panel("value of the function", values[:, -1:].T.numpy(), ("f",), range(tokens - 1, tokens)),
        ],
        parts=[(f"{tokens - 1} examples", tokens - 1), ("query", 1)],
        framed="what the network is asked for",
    )
