"""The expert of the preference grid: exact values of all states of all episodes at once, then a greedy walk.

A state is the agent's cell and the set of remaining objects. Let W_n(c, S) be the value of stepping onto cell c while
the objects S remain, with n steps left afterwards, and V_n(c, S) the value of being there:

    W_n(c, S) = w_j + discount * V_n(c, S - {j}) if object j of S lies at c, else discount * V_n(c, S)
    V_0 = 0,   V_(n+1)(c, S) = max(0, max over moves a of W_n(move(c, a), S))

where 0 is the value of ending the episode. `remaining_steps` is optimal: with n steps left it compares 0 with W_(n-1).
`published` uses the values of the whole horizon at every step, as the authors' release does, and so may pursue objects that
it cannot reach in time. (There the value of "nothing" is discount * V instead of 0. This changes no choice: V_(n+1) >= V_n,
so waiting is never best unless V is 0.)

Actions with the same effect at the same time have exactly the same value, since W and V always add in the same order, from
the last step backwards. Ties are therefore found by comparing for equality.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.kernels import episodes
from recombine.tasks.grids.imitation import ENDED, Episodes

Expert = Literal["remaining_steps", "published"]
NOTHING = 0  # the action that ends the episode; the moves follow


def value_entering(
    objects: Int[Tensor, "batch object"],
    worth: Float[Tensor, "batch object"],
    moves: Int[Tensor, "cells moves"],
    *,
    num_steps: int,
    discount: float,
) -> list[Float[Tensor, "cells batch sets"]]:
    """W_n for n = 0, 1, ..., num_steps - 1; bit j of a set's number is 1 if object j is still there.

    Cells are the first dimension, so that a move copies whole rows and one backup takes tens of microseconds.
    """
    (batch_size, num_objects), num_cells, device = objects.shape, len(moves), objects.device
    num_sets = 1 << num_objects
    sets = torch.arange(num_sets, device=device)
    bits = 1 << torch.arange(num_objects, device=device)
    has = torch.stack([sets[(sets & bit) > 0] for bit in bits.tolist()])  # (object, the sets that hold it)
    episode = torch.arange(batch_size, device=device)[:, None]
    corner = (objects * batch_size + episode)[..., None] * num_sets
    taken, left = (corner + has).flatten(), (corner + (has ^ bits[:, None])).flatten()
    gain = worth.repeat_interleave(num_sets // 2, dim=1).flatten()

    value = torch.zeros(num_cells, batch_size, num_sets, dtype=torch.float32, device=device)
    entering = []
    for _ in range(num_steps):
        entered = discount * value
        entered.view(-1)[taken] = gain + entered.view(-1)[left]
        entering.append(entered)
        value = entered[moves[:, 0]].clamp_min_(0)
        for move in moves.T[1:]:
            torch.maximum(value, entered[move], out=value)
    return entering


def demonstrate(
    start: Int[Tensor, " batch"],
    objects: Int[Tensor, "batch object"],
    worth: Float[Tensor, "batch object"],
    moves: Int[Tensor, "cells moves"],
    *,
    horizon: int,
    discount: float,
    expert: Expert,
) -> Episodes:
    """The expert's episodes from these starts. Among equally good actions it takes the first."""
    if episodes.is_available(objects.device):
        remaining = expert == "remaining_steps"
        return Episodes(
            *episodes.collect(
                start, objects, worth, moves, num_steps=horizon, discount=discount, plans_for_remaining=remaining
            )
        )
    entering = value_entering(objects, worth, moves, num_steps=horizon, discount=discount)
    device = objects.device
    batch_size, num_objects = objects.shape
    episode = torch.arange(batch_size, device=device)
    stay = torch.arange(len(moves), device=device)[:, None]
    leads = torch.cat([stay, moves], dim=1)
    bits = 1 << torch.arange(num_objects, device=device)
    cell, present = start, torch.ones_like(objects, dtype=torch.bool)
    active = torch.ones_like(start, dtype=torch.bool)
    cells, held, actions, optimal = [], [], [], []
    for step in range(horizon):
        values = entering[horizon - 1 - step if expert == "remaining_steps" else horizon - 1]
        number = (present * bits).sum(dim=1)
        targets = leads[cell]
        value = values.view(-1)[((targets * batch_size + episode[:, None]) << num_objects) + number[:, None]]
        value[:, NOTHING] = 0
        best = value == value.amax(dim=1, keepdim=True)
        action = best.int().argmax(dim=1)
        cells.append(cell)
        held.append(present)
        actions.append(action.where(active, ENDED))
        optimal.append(best)
        cell = targets.gather(1, action[:, None])[:, 0]
        present = present & (objects != cell[:, None])
        active = active & (action != NOTHING)
    return Episodes(*(torch.stack(columns, dim=1) for columns in (cells, held, actions, optimal)))
