"""A batch: rows of a task, each with the composition that generated it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from recombine.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Rows of a task. `latents` holds the modules of each row, `info["composition"]` the number of its composition.

    If compositions differ in size, the shorter ones are padded with -1.
    """

    inputs: Tensor
    targets: Tensor
    latents: Int[Tensor, "batch size"]
    info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def composition(self) -> Int[Tensor, " batch"]:
        """Index of each row's composition in `task.split.compositions(split)`."""
        return self.info["composition"]

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def join(cls, batches: Sequence[Batch]) -> Batch:
        """The rows of all batches, one batch after the other."""
        if not batches:
            raise InputError("there are no batches to join: expected at least one")
        return cls(
            torch.cat([batch.inputs for batch in batches]),
            torch.cat([batch.targets for batch in batches]),
            torch.cat([batch.latents for batch in batches]),
            {name: torch.cat([batch.info[name] for batch in batches]) for name in batches[0].info},
        )

    def divide(self, num_rows: int) -> list[Batch]:
        """Batches of `num_rows` rows each, in order: the inverse of `join`. They share their memory with this one."""
        columns = (self.inputs, self.targets, self.latents, *self.info.values())
        count = len(self) // max(1, num_rows)
        if count and len(self) == count * num_rows:  # faster
            parts = [column.unflatten(0, (count, num_rows)).unbind() for column in columns]
        else:
            parts = [column.split(num_rows) for column in columns]
        return [
            Batch(inputs, targets, latents, dict(zip(self.info, info, strict=True)))
            for inputs, targets, latents, *info in zip(*parts, strict=True)
        ]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        return self._map(lambda column: column.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        info = {name: change(column) for name, column in self.info.items()}
        return Batch(change(self.inputs), change(self.targets), change(self.latents), info)
