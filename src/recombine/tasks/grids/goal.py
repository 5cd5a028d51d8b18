"""A grid world of goals in four parts (Scaling can lead to compositional generalization, arXiv 2507.07207).

A goal names a quadrant of the map, an interaction, a maze and an object: 4 x 5 x 5 x 5 = 500 goals. The agent is in that
maze. It should walk to that object in that quadrant along a shortest path and perform the interaction, which ends the
episode. The model receives the goal as an instruction: a sentence of twelve words, each a one-hot over the vocabulary.

The following differs from the authors' release: the sentence and its words; mazes have loops; there is a second object of
the goal's kind, the decoy, in another quadrant (`decoy=False` is as released, where the quadrant adds no information to the
object); `show_walls=False` hides the walls, so that the model must know the maze by its number.

A composition is one value of each part. Values are numbered consecutively over all parts: quadrants, interactions, mazes,
objects.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from markupsafe import Markup
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.compositions import Composition, CompositionSplit, split_compositions
from recombine.foundation.errors import require
from recombine.random import Stream
from recombine.tasks.base import Scale
from recombine.tasks.grids.imitation import ENDED, Episodes, ImitationTask
from recombine.tasks.grids.map import MOVES, draw_mazes, find_shortest_paths, observation_dim, observe
from recombine.tasks.grids.picture import Mark, draw_map, write_map
from recombine.tasks.native import episodes as kernel
from recombine.tasks.sampling import Batch, SplitName, cached_per_device
from recombine.tasks.view import ACCENT, PLAIN


class World(NamedTuple):
    """Shortest paths through each maze (see `find_shortest_paths`), its walls, and which cells belong to each quadrant."""

    moves: Int[Tensor, "maze cells moves"]
    distance: Int[Tensor, "maze cells cells"]
    optimal: Bool[Tensor, "maze cells cells moves"]
    walls: Bool[Tensor, "maze cells"]
    quadrants: Bool[Tensor, "quadrant cells"]


class RandomDraws(NamedTuple):
    """The random numbers of episodes: for cells, and for the kinds of objects other than goal and decoy."""

    uniform: Float[Tensor, "rows 4 cells"]
    anything: Int[Tensor, "rows others"]  # a kind
    something_else: Int[Tensor, "rows others"]  # how far it is behind the goal's kind, less one


def demonstrate_goals(
    world: World,
    draws: RandomDraws,
    goals: Int[Tensor, "rows 4"],
    *,
    horizon: int,
    has_decoy: bool,
    num_values: tuple[int, int, int, int],
) -> tuple[Tensor, ...]:
    """Episodes for goals, each a quadrant, an interaction, a maze and a kind, of which there are `num_values`.

    Returns cells (rows, objects) and kinds (rows, objects) of the objects, the goal first; the number of the goal's
    encoding and the maze (rows); the agent's cells and actions (rows, step); optimal actions (rows, step, action).

    Of the cells that an object may have, the one with the largest random number is taken: for the goal in its quadrant, for
    the agent close enough to it, for the decoy in another quadrant, for the others anywhere. In its quadrant only the goal
    has its kind. The expert takes a shortest path (of several, the one whose moves come first), then interacts.
    """
    if kernel.is_available(goals.device):
        found = kernel.demonstrate_goals(world, draws, goals, horizon, has_decoy=has_decoy, num_values=num_values)
        if found is not None:  # no two cells have the same random number
            return found
    quadrant, interaction, maze, kind = goals.unbind(dim=1)
    start, objects = _place(world, draws, quadrant, maze, horizon, has_decoy)
    others = objects[:, 1 + has_decoy :]
    different = (kind[:, None] + 1 + draws.something_else) % num_values[3]
    barred = world.quadrants[quadrant[:, None], others] if has_decoy else torch.ones_like(others, dtype=torch.bool)
    same = kind[:, None].expand(-1, 1 + has_decoy)
    kinds = torch.cat([same, different.where(barred, draws.anything)], dim=1)
    code = ((quadrant * num_values[1] + interaction) * num_values[2] + maze) * num_values[3] + kind
    return objects, kinds, code, maze, *_walk(world, start, objects, maze, interaction, horizon, num_values[1])


def _place(
    world: World, draws: RandomDraws, quadrant: Tensor, maze: Tensor, horizon: int, has_decoy: bool
) -> tuple[Int[Tensor, " rows"], Int[Tensor, "rows objects"]]:
    """The cells of the agent and of the objects: goal, decoy if there is one, others."""
    chance = draws.uniform + 1
    free, inside = ~world.walls[maze], world.quadrants[quadrant]
    goal = (chance[:, 0] * (free & inside)).argmax(dim=1, keepdim=True)
    steps = world.distance[maze, :, goal[:, 0]]
    start = (chance[:, 1] * ((steps > 0) & (steps < horizon))).argmax(dim=1, keepdim=True)
    left = free.scatter(1, torch.cat([goal, start], dim=1), False)
    decoy = (chance[:, 2] * (left & ~inside)).argmax(dim=1, keepdim=True)[:, : int(has_decoy)]
    others = (chance[:, 3] * left.scatter(1, decoy, False)).topk(draws.anything.shape[1], dim=1).indices
    return start[:, 0], torch.cat([goal, decoy, others], dim=1)


def _walk(
    world: World,
    start: Int[Tensor, " rows"],
    objects: Int[Tensor, "rows objects"],
    maze: Int[Tensor, " rows"],
    interaction: Int[Tensor, " rows"],
    horizon: int,
    num_interactions: int,
) -> tuple[Int[Tensor, "rows step"], Int[Tensor, "rows step"], Bool[Tensor, "rows step action"]]:
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
    return torch.stack(cells, 1), torch.stack(actions, 1), torch.stack(optimal, 1)


Encoding = Literal["instruction", "parts", "arbitrary"]
QUADRANTS = ("upper left", "upper right", "lower left", "lower right")
INTERACTIONS = ("lift", "push", "paint", "clean", "hide", "ring", "measure", "turn", "wrap")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OBJECTS = ("lamp", "book", "drum", "plant", "kettle", "clock", "vase", "globe", "sofa")  # initials differ, for maps


@dataclass(frozen=True, kw_only=True)
class GoalGrid(ImitationTask):
    """Walk to the object that an instruction names, and interact with it as instructed."""

    name: ClassVar[str] = "goal_grid"
    summary: ClassVar[str] = "follow an instruction with four parts in a grid world (arXiv 2507.07207)"

    grid_size: int = 11
    """Number of rows and columns of the map."""
    num_interactions: int = 5
    """Number of interactions with an object."""
    num_mazes: int = 5
    """Number of different mazes."""
    num_objects: int = 5
    """Number of kinds of objects."""
    num_distractors: int = 4
    """Number of objects in addition to the goal, including the decoy."""
    decoy: bool = True
    """Place a second object of the goal's kind in another quadrant, so that the quadrant matters."""
    show_walls: bool = True
    """Show the walls to the agent. Otherwise it must know each maze by its number."""
    encoding: Encoding = "instruction"
    """How the goal is encoded: as a sentence, as a one-hot per part, or as a one-hot over all goals (hides the parts)."""
    horizon: int = 20
    """Maximum number of steps per episode. The agent starts close enough to the goal."""
    held_out: float = 0.25
    """Fraction of the goals that is held out."""

    def __post_init__(self) -> None:
        limits = {
            "num_interactions": (1, len(INTERACTIONS)),
            "num_mazes": (1, len(NUMBERS)),
            "num_objects": (2, len(OBJECTS)),
            "num_distractors": (int(self.decoy), 8),
            "grid_size": (5, 25),
            "horizon": (2, self.grid_size**2),
        }
        for name, (low, high) in limits.items():
            require(low <= getattr(self, name) <= high, name, getattr(self, name), f"{low} to {high}")
        require(self.grid_size % 2 == 1, "grid_size", self.grid_size, "an odd number, since rooms lie at even cells")
        _ = self.split, self.mazes  # raise an error now if the split or the mazes are not possible

    @classmethod
    def at_scale(cls, scale: Scale) -> GoalGrid:
        """`small` has mazes of 7 x 7, `tiny` of 5 x 5 with three values for each part except the quadrant."""
        if scale == "tiny":
            return cls(grid_size=5, horizon=6, num_distractors=2, num_interactions=3, num_mazes=3, num_objects=3)
        return cls(grid_size=7, horizon=10, num_distractors=3) if scale == "small" else cls()

    @property
    def num_values(self) -> tuple[int, int, int, int]:
        """Number of values of the quadrant, the interaction, the maze and the object."""
        return len(QUADRANTS), self.num_interactions, self.num_mazes, self.num_objects

    @property
    def offsets(self) -> tuple[int, ...]:
        """The number of the first value of each part."""
        return tuple(itertools.accumulate(self.num_values[:-1], initial=0))

    @property
    def output_dim(self) -> int:
        return len(MOVES) + self.num_interactions

    @property
    def encoding_dim(self) -> int:
        return self.encodings.shape[-1]

    @property
    def input_dim(self) -> int:
        return self.encoding_dim + observation_dim(
            num_kinds=self.num_objects, num_cells=self.grid_size**2, walls=self.show_walls, clock=0
        )

    @cached_property
    def split(self) -> CompositionSplit:
        goals = itertools.product(*map(range, self.num_values))
        compositions = [tuple(map(sum, zip(goal, self.offsets, strict=True))) for goal in goals]
        return split_compositions(compositions, held_out=self.held_out, seed=self.seed)

    @cached_property
    def mazes(self) -> Bool[Tensor, "maze height width"]:
        return draw_mazes(self.name, self.seed, num_mazes=self.num_mazes, size=self.grid_size)

    @cached_property
    def world(self) -> World:
        moves, distance, optimal = map(torch.stack, zip(*map(find_shortest_paths, self.mazes), strict=True))
        return World(moves, distance, optimal, self.mazes.flatten(1), self.quadrants)

    @cached_property
    def quadrants(self) -> Bool[Tensor, "quadrant cells"]:
        """Which cells belong to each quadrant; the middle row and column count as top and left."""
        beyond = torch.arange(self.grid_size) > self.grid_size // 2
        number = 2 * beyond[:, None] + beyond
        return number.flatten() == torch.arange(len(QUADRANTS))[:, None]

    @cached_property
    def encodings(self) -> Float[Tensor, "quadrant interaction maze object code"]:
        """The encoding of every goal."""
        goals = list(itertools.product(*map(range, self.num_values)))
        if self.encoding == "arbitrary":
            codes = torch.eye(len(goals), dtype=torch.float32)
        elif self.encoding == "parts":
            numbers = torch.tensor(goals) + torch.tensor(self.offsets)
            codes = one_hot(numbers, sum(self.num_values)).sum(dim=1).float()
        else:
            sentences = [self.write_instruction(*goal).split() for goal in goals]
            words = sorted({word for sentence in sentences for word in sentence})
            numbers = torch.tensor([[words.index(word) for word in sentence] for sentence in sentences])
            codes = one_hot(numbers, len(words)).flatten(1).float()
        return codes.view(*self.num_values, -1)

    def write_instruction(self, quadrant: int, interaction: int, maze: int, kind: int) -> str:
        """A goal as a sentence of twelve words."""
        where = f"in maze {NUMBERS[maze]} go to the {QUADRANTS[quadrant]}"
        return f"{where} and {INTERACTIONS[interaction]} the {OBJECTS[kind]}"

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Episodes of the expert with goals of the split.

        - `inputs` (batch, step, feature): the encoding of the goal, then the observation;
        - `targets` (batch, step): the expert's actions, the four moves and then the interactions, ENDED after the end;
        - `latents` (batch, 4): quadrant, interaction, maze and object, numbered consecutively;
        - `info["kinds"]`, `info["objects"]` (batch, object): kinds and cells, the goal first, then the decoy if there is one;
        - `info["cells"]` (batch, step): the agent's; `info["optimal"]` (batch, step, action).
        """
        composition, modules = self.draw_compositions(split, stream)
        world, offsets, codes, walls = self._tables(stream.device)
        num_others = self.num_distractors - self.decoy
        draws = RandomDraws(
            stream.uniform(4, self.grid_size**2),
            stream.integers(self.num_objects, num_others),
            stream.integers(self.num_objects - 1, num_others),
        )
        horizon, has_decoy = self.horizon, self.decoy
        objects, kinds, code, maze, cells, actions, optimal = demonstrate_goals(
            world, draws, modules - offsets, horizon=horizon, has_decoy=has_decoy, num_values=self.num_values
        )
        present = torch.ones(len(objects), horizon, objects.shape[1], dtype=torch.bool, device=stream.device)
        inputs = observe(
            Episodes(cells, present, actions, optimal),
            codes=codes,
            code_index=code,
            objects=objects,
            kinds=kinds,
            num_kinds=self.num_objects,
            num_cells=self.grid_size**2,
            walls=walls if self.show_walls else None,
            map_index=maze,
            clock=0,
        )
        info = {"composition": composition, "kinds": kinds, "objects": objects, "cells": cells, "optimal": optimal}
        return Batch(inputs, actions, modules, info)

    @cached_per_device
    def _tables(self, device: torch.device) -> tuple[World, Tensor, Tensor, Tensor]:
        """On a device: the world, the offsets of the parts, the encoding of each goal, and the walls as numbers."""
        return (
            World(*(table.to(device) for table in self.world)),
            torch.tensor(self.offsets, device=device),
            self.encodings.flatten(0, 3).to(device),
            self.world.walls.to(device, torch.float32),
        )

    def describe(self, composition: Composition) -> str:
        """The instruction; for an incomplete goal, the names of its values."""
        if len(composition) == len(self.num_values):
            goal = (value - offset for value, offset in zip(composition, self.offsets, strict=True))
            return self.write_instruction(*goal)
        mazes = [f"maze {number}" for number in NUMBERS[: self.num_mazes]]
        names = [*QUADRANTS, *INTERACTIONS[: self.num_interactions], *mazes, *OBJECTS]
        return ", ".join(names[value] for value in composition)

    def render(self, batch: Batch, row: int) -> str:
        """The instruction, the map, and the expert's steps."""
        maze = int(batch.latents[row, 2]) - self.offsets[2]
        cells, kinds = (batch.info[name][row].tolist() for name in ("objects", "kinds"))
        shown = {cell: OBJECTS[kind][0] for cell, kind in zip(cells, kinds, strict=True)}
        shown[cells[0]] = shown[cells[0]].upper()
        lines = [self.describe(tuple(batch.latents[row].tolist())), ""]
        lines += write_map(self.mazes[maze], int(batch.info["cells"][row, 0]), shown)
        names = [*MOVES, *INTERACTIONS]
        steps = [names[action] for action in batch.targets[row].tolist() if action != ENDED]
        runs = [(name, len(list(same))) for name, same in itertools.groupby(steps)]
        walk = ", ".join(f"{name} {count}x" if count > 1 else name for name, count in runs)
        key = ", ".join(f"{name[0]} {name}" for name in OBJECTS[: self.num_objects])
        return "\n".join([*lines, "", f"@ agent, capital: goal, {key}", "", f"the expert  {walk}"])

    def picture(self, batch: Batch, row: int) -> Markup:
        """The map with the expert's path, and what its objects are."""
        quadrant, interaction, maze, _ = (batch.latents[row] - torch.tensor(self.offsets)).tolist()
        cells, kinds = (batch.info[name][row].tolist() for name in ("objects", "kinds"))
        labels = [f"a {OBJECTS[kind]}" + (" elsewhere" if kind == kinds[0] else "") for kind in kinds]
        labels[0] = f"the {OBJECTS[kinds[0]]}: the goal"
        num_steps = int((batch.targets[row] != ENDED).sum())
        return draw_map(
            walls=self.mazes[maze],
            walk=batch.info["cells"][row, :num_steps].tolist(),
            marks=[
                Mark(cell, kind, PLAIN if number else ACCENT, label)
                for number, (cell, kind, label) in enumerate(zip(cells, kinds, labels, strict=True))
            ],
            title=self.describe(tuple(batch.latents[row].tolist())),
            ending=f"it arrives: {INTERACTIONS[interaction]}",
            shaded=self.quadrants[quadrant].nonzero()[:, 0].tolist(),
        )
