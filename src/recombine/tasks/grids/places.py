"""Where the goal grid puts its goal, its agent and the decoy: a random one of the cells that each may have."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.kernels import episodes as kernel


def place(
    uniform: Float[Tensor, "rows 4 cells"],
    maze: Int[Tensor, " rows"],
    quadrant: Int[Tensor, " rows"],
    distance: Int[Tensor, "maze cells cells"],
    walls: Bool[Tensor, "maze cells"],
    quadrants: Bool[Tensor, "quadrant cells"],
    *,
    horizon: int,
    has_decoy: bool,
) -> tuple[Int[Tensor, "rows 1"], Int[Tensor, "rows 1"], Int[Tensor, "rows decoys"], Float[Tensor, "rows cells"]]:
    """The cells of goal, agent and decoy, if there is one; and numbers that order the cells left for other objects.

    The goal is in its quadrant, the agent close enough to it, the decoy in another quadrant. Of the cells that are possible,
    the one with the largest random number is taken, the first of several.
    """
    if kernel.is_available(uniform.device):
        return kernel.place(uniform, maze, quadrant, distance, walls, quadrants, horizon=horizon, has_decoy=has_decoy)
    luck = uniform + 1
    free, inside = ~walls[maze], quadrants[quadrant]
    goal = (luck[:, 0] * (free & inside)).argmax(dim=1, keepdim=True)
    steps = distance[maze, :, goal[:, 0]]
    start = (luck[:, 1] * ((steps > 0) & (steps < horizon))).argmax(dim=1, keepdim=True)
    left = free.scatter(1, torch.cat([goal, start], dim=1), False)
    decoy = (luck[:, 2] * (left & ~inside)).argmax(dim=1, keepdim=True)[:, : int(has_decoy)]
    return goal, start, decoy, luck[:, 3] * left.scatter(1, decoy, False)
