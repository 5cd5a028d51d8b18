"""Episodes of the goal grid: where goal, agent and other objects are, and how the expert reaches the goal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.kernels import episodes as kernel
from recombine.tasks.grids.imitation import ENDED, Episodes


class World(NamedTuple):
    """For each maze: where moves lead, the lengths of shortest paths, the moves with which such paths begin, and the walls.
    And which cells belong to each quadrant.
    """

    moves: Int[Tensor, "maze cells moves"]
    distance: Int[Tensor, "maze cells cells"]
    optimal: Bool[Tensor, "maze cells cells moves"]
    walls: Bool[Tensor, "maze cells"]
    quadrants: Bool[Tensor, "quadrant cells"]


class Chance(NamedTuple):
    """The random numbers of episodes: for cells, and for the kinds of objects other than goal and decoy."""

    uniform: Float[Tensor, "rows 4 cells"]
    anything: Int[Tensor, "rows others"]  # a kind
    something_else: Int[Tensor, "rows others"]  # how far it is behind the goal's kind, less one


class Pursuit(NamedTuple):
    """Cells and kinds of the objects, the goal first; the number of the goal's encoding; the maze; the expert's episodes."""

    objects: Int[Tensor, "rows objects"]
    kinds: Int[Tensor, "rows objects"]
    code: Int[Tensor, " rows"]
    maze: Int[Tensor, " rows"]
    episodes: Episodes


def pursue(
    world: World,
    chance: Chance,
    goals: Int[Tensor, "rows 4"],
    *,
    horizon: int,
    has_decoy: bool,
    num_values: tuple[int, int, int, int],
) -> Pursuit:
    """Episodes for goals, each a quadrant, an interaction, a maze and a kind, of which there are `num_values`.

    Of the cells that an object may have, the one with the largest random number is taken: for the goal in its quadrant, for
    the agent close enough to it, for the decoy in another quadrant, for the others anywhere. In its quadrant only the goal
    has its kind. The expert takes a shortest path (of several, the one whose moves come first), then interacts.
    """
    if kernel.is_available(goals.device):
        found = kernel.pursue(*world, *chance, goals, num_steps=horizon, has_decoy=has_decoy, num_values=num_values)
        if found is not None:  # no two cells have the same random number
            objects, kinds, code, maze, cells, actions, optimal = found
            return Pursuit(
                objects, kinds, code, maze, Episodes(cells, _all_present(objects, horizon), actions, optimal)
            )
    quadrant, interaction, maze, kind = goals.unbind(dim=1)
    start, objects = _place(world, chance, quadrant, maze, horizon, has_decoy)
    others = objects[:, 1 + has_decoy :]
    different = (kind[:, None] + 1 + chance.something_else) % num_values[3]
    barred = world.quadrants[quadrant[:, None], others] if has_decoy else torch.ones_like(others, dtype=torch.bool)
    same = kind[:, None].expand(-1, 1 + has_decoy)
    kinds = torch.cat([same, different.where(barred, chance.anything)], dim=1)
    code = ((quadrant * num_values[1] + interaction) * num_values[2] + maze) * num_values[3] + kind
    return Pursuit(objects, kinds, code, maze, _walk(world, start, objects, maze, interaction, horizon, num_values[1]))


def _all_present(objects: Int[Tensor, "rows objects"], num_steps: int) -> Bool[Tensor, "rows step objects"]:
    rows, num_objects = objects.shape
    return torch.ones(rows, num_steps, num_objects, dtype=torch.bool, device=objects.device)


def _place(
    world: World, chance: Chance, quadrant: Tensor, maze: Tensor, horizon: int, has_decoy: bool
) -> tuple[Int[Tensor, " rows"], Int[Tensor, "rows objects"]]:
    """The cells of the agent and of the objects: goal, decoy if there is one, others."""
    luck = chance.uniform + 1
    free, inside = ~world.walls[maze], world.quadrants[quadrant]
    goal = (luck[:, 0] * (free & inside)).argmax(dim=1, keepdim=True)
    steps = world.distance[maze, :, goal[:, 0]]
    start = (luck[:, 1] * ((steps > 0) & (steps < horizon))).argmax(dim=1, keepdim=True)
    left = free.scatter(1, torch.cat([goal, start], dim=1), False)
    decoy = (luck[:, 2] * (left & ~inside)).argmax(dim=1, keepdim=True)[:, : int(has_decoy)]
    others = (luck[:, 3] * left.scatter(1, decoy, False)).topk(chance.anything.shape[1], dim=1).indices
    return start[:, 0], torch.cat([goal, decoy, others], dim=1)


def _walk(
    world: World,
    start: Int[Tensor, " rows"],
    objects: Int[Tensor, "rows objects"],
    maze: Int[Tensor, " rows"],
    interaction: Int[Tensor, " rows"],
    horizon: int,
    num_interactions: int,
) -> Episodes:
    goal, cell = objects[:, 0], start
    last = one_hot(interaction, num_interactions).bool()
    ended = torch.zeros_like(start, dtype=torch.bool)
    cells, actions, optimal = [], [], []
    for _ in range(horizon):
        arrived = (cell == goal)[:, None]
        best = torch.cat([world.optimal[maze, cell, goal], last & arrived], dim=1)
        action = best.int().argmax(dim=1)
        cells.append(cell)
        actions.append(torch.where(ended, ENDED, action))
        optimal.append(best)
        ended = arrived[:, 0]
        cell = torch.where(ended, cell, world.moves[maze, cell, action.clamp_max(world.moves.shape[2] - 1)])
    present = _all_present(objects, horizon)
    return Episodes(torch.stack(cells, 1), present, torch.stack(actions, 1), torch.stack(optimal, 1))
