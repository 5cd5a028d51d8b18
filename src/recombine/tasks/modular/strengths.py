"""Strengths of the modules in a task: the vector z of every family that mixes modules (SC, arXiv 2507.07207)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.tasks.stream import Stream

Latents = Literal["discrete", "k_hot", "continuous"]
LOWEST_LEVEL, HIGHEST_LEVEL = 5, 10  # strengths of active modules, in tenths


def draw_levels(stream: Stream, num_slots: int, latents: Latents) -> Float[Tensor, "rows slots"]:
    """The strengths of active modules."""
    if latents == "continuous":
        lowest = LOWEST_LEVEL / HIGHEST_LEVEL
        return lowest + (1 - lowest) * stream.uniform(num_slots)
    if latents == "discrete":
        levels = stream.integers(HIGHEST_LEVEL - LOWEST_LEVEL + 1, num_slots) + LOWEST_LEVEL
        return levels.float() / HIGHEST_LEVEL
    return torch.ones(len(stream), num_slots, dtype=torch.float32, device=stream.device)


def draw_strengths(
    modules: Int[Tensor, "rows active"], stream: Stream, *, num_modules: int, latents: Latents
) -> Float[Tensor, "rows modules"]:
    """The strength of each module; 0 outside the composition. -1 in `modules` means no module."""
    levels = draw_levels(stream, modules.shape[1], latents)
    everywhere = torch.zeros(len(modules), num_modules + 1, dtype=torch.float32, device=modules.device)
    # the last column receives the padding of short compositions, -1, and is dropped
    return everywhere.scatter_(1, modules % (num_modules + 1), levels)[:, :-1]
