"""A grid world of preferences (Scaling can lead to compositional generalization, arXiv 2507.07207).

Four rooms contain objects, each of one of F kinds, and an agent that picks up objects it steps on. A task is a vector z
over M modules, of which 1 to K are active. It determines the value of an object of kind f:

    w(f) = sum over modules m of z_m B[m, f],   B ~ N(0, 1) once for all tasks

At each of 8 steps the agent moves up, right, down or left, or ends the episode by doing nothing. It should act like the
expert (see `expert`): collect valuable objects early (discount 0.9) and avoid those with a negative value.

An input token is a step: the encoding of z, then the map (see `map`). The optimal action depends on the number of remaining
steps, so with the expert `remaining_steps` it is part of the observation. The expert `published` needs no clock; the inputs
are then those of the authors' release.

The expert computes exact values of all states of all episodes at once, then walks greedily. A state is the agent's cell and
the set of remaining objects. Let W_n(c, S) be the value of stepping onto cell c while the objects S remain, with n steps
left afterwards, and V_n(c, S) the value of being there:

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

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from markupsafe import Markup
from torch import Tensor

from recombine.foundation.errors import check_positive, require
from recombine.random import Stream
from recombine.tasks.base import Scale
from recombine.tasks.grids.imitation import ENDED, Episodes, ImitationTask, PreferenceReading
from recombine.tasks.grids.map import MOVES, observation_dim, observe, tabulate_moves
from recombine.tasks.grids.picture import Mark, draw_map, write_map
from recombine.tasks.modular.mixture import MixtureTask
from recombine.tasks.modular.teacher import describe_mixture
from recombine.tasks.native import episodes
from recombine.tasks.sampling import Batch, SplitName
from recombine.tasks.view import BAD, GOOD

Expert = Literal["remaining_steps", "published"]
NOTHING = 0  # the action that ends the episode; the moves follow


def compute_entry_values(
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
    remaining = expert == "remaining_steps"
    if episodes.is_available(objects.device):
        return Episodes(*episodes.demonstrate_preferences(start, objects, worth, moves, horizon, discount, remaining))
    entering = compute_entry_values(objects, worth, moves, num_steps=horizon, discount=discount)
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
        values = entering[horizon - 1 - step if remaining else horizon - 1]
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


GridEncoding = Literal["identity", "orthogonal", "tokens", "invertible", "interval_shuffle"]
ACTIONS = ("nothing", *MOVES)
LAYOUT = """
#######
#..#..#
#..#..#
##...##
#..#..#
#..#..#
#######
"""
MAX_OBJECTS = 10  # the expert enumerates all sets of objects


@dataclass(frozen=True, kw_only=True)
class PreferenceGrid(MixtureTask, ImitationTask):
    """Collect the objects in a grid world that a mixture of preferences makes valuable."""

    name: ClassVar[str] = "preference_grid"
    module_title: ClassVar[str] = "preference"
    summary: ClassVar[str] = "act on a mixture of preferences in a grid world (arXiv 2507.07207)"

    num_features: int = 16
    """Number of kinds of objects."""
    num_objects: int = 4
    """Number of objects on a map."""
    encoding: GridEncoding = "identity"
    """How the task is encoded in the inputs."""
    discount: float = 0.9
    """Discount factor of the reward per step."""
    expert: Expert = "remaining_steps"
    """Expert that plans for the remaining steps or, as published, for the whole horizon at every step."""

    def __post_init__(self) -> None:
        check_positive(num_features=self.num_features, num_objects=self.num_objects, horizon=self.horizon)
        require(self.num_objects <= MAX_OBJECTS, "num_objects", self.num_objects, f"at most {MAX_OBJECTS}")
        require(0 < self.discount < 1, "discount", self.discount, "a number strictly between 0 and 1")
        super().__post_init__()

    @classmethod
    def at_scale(cls, scale: Scale) -> PreferenceGrid:
        """`small` has 8 preferences and 8 kinds of objects, `tiny` has 4 of each and two objects per map."""
        if scale == "tiny":
            return cls(num_modules=4, num_active=2, num_features=4, num_objects=2, horizon=6)
        return cls(num_modules=8, num_features=8) if scale == "small" else cls()

    @property
    def output_dim(self) -> int:
        return len(ACTIONS)

    @property
    def input_dim(self) -> int:
        return self.encoding_dim + observation_dim(
            num_kinds=self.num_features, num_cells=self.walls.numel(), walls=True, clock=self.clock
        )

    @property
    def clock(self) -> int:
        """Number of features that encode the remaining steps."""
        return self.horizon if self.expert == "remaining_steps" else 0

    @cached_property
    def walls(self) -> Bool[Tensor, "height width"]:
        return torch.tensor([[cell == "#" for cell in line] for line in LAYOUT.split()])

    @cached_property
    def free(self) -> Int[Tensor, " free"]:
        """The cells that are not walls, in the numbering of the expert."""
        return (~self.walls).flatten().nonzero()[:, 0]

    @cached_property
    def moves(self) -> Int[Tensor, "free moves"]:
        """Where each move leads, from free cell to free cell."""
        return torch.searchsorted(self.free, tabulate_moves(self.walls)[self.free])

    @cached_property
    def basis(self) -> Float[Tensor, "module feature"]:
        """The value of each kind of object for each preference: standard normal."""
        return Stream(self.name, self.seed, "basis", rows=range(self.num_modules)).normal(self.num_features).float()

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Episodes of the expert with preferences of the split.

        - `inputs` (batch, step, feature): the encoding of the task, then the observation;
        - `targets` (batch, step): the expert's actions, numbered as in `ACTIONS`, ENDED after the end;
        - `latents` (batch, K): the active modules, then -1;
        - `info["strengths"]` (batch, module), `info["worth"]` (batch, object): the task, and the values of the objects;
        - `info["kinds"]`, `info["objects"]` (batch, object): the kinds and cells of the objects;
        - `info["cells"]` (batch, step): the agent's cell; `info["present"]` (batch, step, object): which objects remain;
        - `info["optimal"]` (batch, step, action).
        """
        composition, modules = self.draw_compositions(split, stream)
        strengths = self.draw_strengths(modules, stream)
        kinds = stream.integers(self.num_features, self.num_objects)
        places = stream.choices(len(self.free), self.num_objects + 1)
        start, objects = places[:, -1], places[:, :-1]
        worth = self.value(strengths, modules, kinds)
        episodes = demonstrate(
            start,
            objects,
            worth,
            self.moves.to(stream.device),
            horizon=self.horizon,
            discount=self.discount,
            expert=self.expert,
        )
        free = self.free.to(stream.device)
        episodes, objects = episodes._replace(cells=free.take(episodes.cells)), free.take(objects)
        inputs = observe(
            episodes,
            codes=self.encode(strengths),
            objects=objects,
            kinds=kinds,
            num_kinds=self.num_features,
            num_cells=self.walls.numel(),
            walls=self.walls.flatten()[None].to(stream.device, torch.float32),
            clock=self.clock,
        )
        info = {"composition": composition, "strengths": strengths, "worth": worth, "kinds": kinds, "objects": objects}
        info |= {"cells": episodes.cells, "present": episodes.present, "optimal": episodes.optimal}
        return Batch(inputs, episodes.actions, modules, info)

    def value(
        self,
        strengths: Float[Tensor, "rows modules"],
        modules: Int[Tensor, "rows active"],
        kinds: Int[Tensor, "rows object"],
    ) -> Float[Tensor, "rows object"]:
        """The values of objects of these kinds, added up module by module.

        The last bits of a matrix product would depend on the number of rows.
        """
        chosen = modules.clamp_min(0)
        weights = strengths.gather(1, chosen) * (modules >= 0)
        basis = self.basis.to(kinds.device)[chosen[..., None], kinds[:, None]]
        return (weights[..., None] * basis).sum(dim=1)

    def reading(self) -> PreferenceReading:
        return PreferenceReading(self)

    def render(self, batch: Batch, row: int) -> str:
        """The map with the expert's path, the values of the objects, and each step."""
        names = [chr(ord("A") + number) for number in range(self.num_objects)]
        info = {name: column[row].tolist() for name, column in batch.info.items()}
        lines = [describe_mixture(batch.info["strengths"][row], "preference"), ""]
        lines += write_map(self.walls, info["cells"][0], dict(zip(info["objects"], names, strict=True)))
        lines += ["", "object  kind   worth"]
        for name, kind, worth in zip(names, info["kinds"], info["worth"], strict=True):
            lines.append(f"     {name}  {kind:4}  {worth:+.3f}".replace("-", "−"))
        lines += ["", "the expert"]
        for step, action in enumerate(batch.targets[row].tolist()):
            if action == ENDED:
                break
            tied = [ACTIONS[other] for other, best in enumerate(info["optimal"][step]) if best and other != action]
            lines.append(f"  {step + 1}  {ACTIONS[action]}" + (f"   (or {', '.join(tied)})" if tied else ""))
        return "\n".join(lines)

    def picture(self, batch: Batch, row: int) -> Markup:
        """The map with the expert's path, and what its objects are."""
        info = {name: column[row].tolist() for name, column in batch.info.items()}
        actions = [action for action in batch.targets[row].tolist() if action != ENDED]
        walk = info["cells"][: len(actions)]
        if actions[-1] != NOTHING:
            walk.append(tabulate_moves(self.walls)[walk[-1], actions[-1] - 1].item())
        return draw_map(
            walls=self.walls,
            walk=walk,
            marks=[
                Mark(cell, kind, GOOD if worth > 0 else BAD, f"kind {kind}", worth)
                for cell, kind, worth in zip(info["objects"], info["kinds"], info["worth"], strict=True)
            ],
            title=describe_mixture(batch.info["strengths"][row], "preference"),
            ending="nothing more to do" if actions[-1] == NOTHING else "out of time",
        )
