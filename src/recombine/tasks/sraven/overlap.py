"""How many evaluation puzzles also occur in training. All splits are drawn at random, so small puzzles repeat by chance.

Only visible panels are compared, so that two puzzles with different answers count as the same. `test` shares the multisets
of rules with training. A puzzle of `ood` can occur there too, if other rules explain it as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from recombine.tables import Column, Table
from recombine.tasks.base import Batch, SplitName, Task
from recombine.tasks.stream import Stream

BATCH_SIZE = 8_192
NUM_TRAINING, MAX_TRAINING = 256, 1 << 20  # training puzzles: per evaluation puzzle, and at most
FRACTIONS = (16, 4, 1)


def tabulate_overlap(task: Task, num_instances: int) -> Table:
    """The share of puzzles of each split that occur among the first training puzzles, for several numbers of those."""
    evaluated: dict[SplitName, Tensor] = {
        split: fingerprint(task.sample(split, 0, batch_size=num_instances)) for split in ("test", "ood")
    }
    num_training = min(NUM_TRAINING * num_instances, MAX_TRAINING)
    training = torch.cat(list(_draw_training(task, num_training)))
    rows = []
    for fraction in FRACTIONS:
        drawn = training[: num_training // fraction]
        shares = [torch.isin(prints, drawn).double().mean().item() for prints in evaluated.values()]
        rows.append((len(drawn), *shares))
    return Table(
        title=f"evaluation puzzles that also occur in training, of {num_instances} per split",
        columns=("training puzzles", *(Column(name=split, format="percent", digits=2) for split in evaluated)),
        rows=tuple(rows),
        note="equal in all visible panels",
    )


def _draw_training(task: Task, num_training: int) -> Iterator[Int[Tensor, " puzzles"]]:
    for index, first in enumerate(range(0, num_training, BATCH_SIZE)):
        yield fingerprint(task.sample("train", index, batch_size=min(BATCH_SIZE, num_training - first)))


def fingerprint(batch: Batch) -> Int[Tensor, " batch"]:
    """A hash of the visible panels of each puzzle. Two different puzzles collide with a probability below 2^-60."""
    visible = batch.info["grids"].flatten(1, 2)[:, :-1].flatten(1)
    factors = Stream("sraven fingerprint", rows=range(1), device=visible.device).bits(visible.shape[1])[0] | 1
    return (visible * factors).sum(dim=1)
