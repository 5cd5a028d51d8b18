"""A grid world of preferences (Scale leads to compositional generalization, arXiv 2507.07207).

Four rooms hold objects, each of one of F kinds, and an agent that picks up what it steps on. A task is a vector z over M
modules, of which 1 to K are active; it says what an object of kind f is worth:

    w(f) = sum over modules m of z_m B[m, f],   B ~ N(0, 1) once for all tasks

At each of 8 steps the agent moves up, right, down or left, or ends the episode by doing nothing. It is to act as the
expert of `preference_expert` does: what is worth having is to be had soon (discount 0.9), what is worth less than nothing
to be walked around.

An input token is a step: the encoding of z, then the map, see `grid_map`. The optimal action depends on how many steps are
left, so with the expert `remaining_steps` they are in the observation; the expert `published` needs no clock and gets none.
The inputs then are those of the authors' release.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit, all_sets, split_compositions
from recombine.errors import InputError, check_choice, check_positive
from recombine.tasks.base import Batch, SplitName, Stream
from recombine.tasks.grid_map import MOVES, observation_dim, observe, tabulate_moves
from recombine.tasks.grid_picture import BAD, GOOD, Mark, draw_map, write_map
from recombine.tasks.imitation import ENDED, ImitationTask
from recombine.tasks.preference_expert import Expert, demonstrate

Latents = Literal["discrete", "k_hot", "continuous"]
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
MAX_OBJECTS = 10  # the expert looks at all sets of them


@dataclass(frozen=True, kw_only=True)
class PreferenceGrid(ImitationTask):
    """Collect in a grid world what a mixture of preferences makes valuable."""

    name: ClassVar[str] = "preference_grid"
    summary: ClassVar[str] = "act on a mixture of preferences in a grid world (SC)"

    num_modules: int = 16
    """Preferences that tasks are mixed from."""
    num_active: int = 3
    """Most preferences in one task."""
    num_features: int = 16
    """Kinds of objects."""
    num_objects: int = 4
    """Objects on a map."""
    latents: Latents = "discrete"
    """Weight of an active preference: one of 0.5, 0.6, ..., 1; always 1; or anything between 0.5 and 1."""
    discount: float = 0.9
    """What a reward loses with each step that it comes later."""
    expert: Expert = "remaining_steps"
    """Values for the steps that are left, or as published for the whole horizon at every step."""
    held_out: float = 0.25
    """Fraction of the sets of preferences that are never trained."""

    def __post_init__(self) -> None:
        check_positive(num_modules=self.num_modules, num_active=self.num_active, num_features=self.num_features)
        check_positive(num_objects=self.num_objects, horizon=self.horizon)
        check_choice("latents", self.latents, get_args(Latents))
        check_choice("expert", self.expert, get_args(Expert))
        if self.num_active > self.num_modules:
            raise InputError(f"num_active is {self.num_active}: expected at most num_modules, {self.num_modules}")
        room = min(MAX_OBJECTS, len(self.free) - 1)
        if self.num_objects > room:
            raise InputError(f"num_objects is {self.num_objects}: expected at most {room}")
        if not 0 < self.discount < 1:
            raise InputError(f"discount is {self.discount}: expected a number strictly between 0 and 1")
        _ = self.split  # refuse what cannot be covered before anything is built on it

    @property
    def num_actions(self) -> int:
        return len(ACTIONS)

    @property
    def input_dim(self) -> int:
        return self.num_modules + observation_dim(
            num_kinds=self.num_features, num_cells=self.walls.numel(), walls=True, clock=self.clock
        )

    @property
    def clock(self) -> int:
        """Features that tell how many steps are left."""
        return self.horizon if self.expert == "remaining_steps" else 0

    @cached_property
    def walls(self) -> Bool[Tensor, "height width"]:
        return torch.tensor([[cell == "#" for cell in line] for line in LAYOUT.split()])

    @cached_property
    def free(self) -> Int[Tensor, " free"]:
        """The cells that are no walls, by which the expert counts."""
        return (~self.walls).flatten().nonzero()[:, 0]

    @cached_property
    def moves(self) -> Int[Tensor, "free moves"]:
        """Where each move leads, from free cell to free cell."""
        return torch.searchsorted(self.free, tabulate_moves(self.walls)[self.free])

    @cached_property
    def basis(self) -> Float[Tensor, "module feature"]:
        """What each preference finds each kind of object worth: standard normal."""
        stream = Stream(self.name, self.seed, "basis", rows=range(self.num_modules))
        return torch.special.ndtri(stream.uniform(self.num_features).double() + 2.0**-25).float()

    @cached_property
    def split(self) -> CompositionSplit:
        sets = all_sets(self.num_modules, range(1, self.num_active + 1))
        return split_compositions(sets, held_out=self.held_out, seed=self.seed)

    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split, or only the given rows of it.

        - `inputs` (batch, step, feature): the encoding of the task, then the observation;
        - `targets` (batch, step): the expert's actions, numbered as in `ACTIONS`, ENDED after the end;
        - `latents` (batch, K): the active modules, then -1;
        - `info["z"]` (batch, module), `info["worth"]` (batch, object): the task, and what it makes of the objects;
        - `info["kinds"]`, `info["objects"]` (batch, object): their kinds and cells; `info["cells"]` (batch, step): the agent's;
        - `info["present"]` (batch, step, object), `info["optimal"]` (batch, step, action).
        """
        stream = self.stream(split, index, range(batch_size) if rows is None else rows, device)
        composition, modules = self.draw_compositions(split, stream)
        weights = self._draw_weights(stream, modules)
        z = torch.zeros(len(modules), self.num_modules, device=stream.device)
        z.scatter_add_(1, modules.clamp_min(0), weights)
        kinds = stream.integers(self.num_features, self.num_objects)
        places = stream.permutations(len(self.free))[:, : self.num_objects + 1]
        start, objects = places[:, -1], places[:, :-1]
        # module by module, not as a matrix product: the sum must not depend on how many rows there are
        basis = self.basis.to(stream.device)
        worth = (weights[..., None] * basis[modules.clamp_min(0)[..., None], kinds[:, None]]).sum(dim=1)
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
        episodes, objects = episodes._replace(cells=free[episodes.cells]), free[objects]
        inputs = observe(
            episodes,
            encoding=z,
            objects=objects,
            kinds=kinds,
            num_kinds=self.num_features,
            num_cells=self.walls.numel(),
            walls=self.walls.flatten()[None].to(stream.device, torch.float32),
            clock=self.clock,
        )
        info = {"composition": composition, "z": z, "worth": worth, "kinds": kinds, "objects": objects}
        info |= {"cells": episodes.cells, "present": episodes.present, "optimal": episodes.optimal}
        return Batch(inputs, episodes.actions, modules, info)

    def _draw_weights(self, stream: Stream, modules: Int[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        """The weights of the active modules, 0 where there is none."""
        if self.latents == "discrete":
            weights = 0.5 + 0.1 * stream.integers(6, modules.shape[1]).float()
        elif self.latents == "continuous":
            weights = 0.5 + 0.5 * stream.uniform(modules.shape[1])
        else:
            weights = torch.ones(modules.shape, device=modules.device)
        return weights * (modules >= 0)

    def describe(self, composition: Composition) -> str:
        return " + ".join(f"preference {module}" for module in composition)

    def render(self, batch: Batch, row: int) -> str:
        """The map with the expert's path, what the objects are worth, and each step."""
        names = [chr(ord("A") + number) for number in range(self.num_objects)]
        info = {name: column[row].tolist() for name, column in batch.info.items()}
        lines = [f"task  {self._write_task(batch, row)}", ""]
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

    def _write_task(self, batch: Batch, row: int) -> str:
        active = [module for module in batch.latents[row].tolist() if module >= 0]
        return " + ".join(f"{batch.info['z'][row, module]:.3g} · preference {module}" for module in active)

    def draw(self, batch: Batch, row: int, path: Path | str) -> None:
        """Write a picture of one episode as PNG or SVG: as the path ends."""
        info = {name: column[row].tolist() for name, column in batch.info.items()}
        num_steps = int((batch.targets[row] != ENDED).sum())
        last = batch.targets[row, num_steps - 1].item()
        walk = [*info["cells"][:num_steps]]
        if last != 0:
            start = int((self.free == walk[-1]).nonzero())
            walk.append(int(self.free[self.moves[start, last - 1]]))
        draw_map(
            path,
            walls=self.walls,
            walk=walk,
            marks=[
                Mark(cell, kind, GOOD if worth > 0 else BAD, f"kind {kind}", worth)
                for cell, kind, worth in zip(info["objects"], info["kinds"], info["worth"], strict=True)
            ],
            title=self._write_task(batch, row),
            ending="nothing more to do" if last == 0 else "out of time",
        )
