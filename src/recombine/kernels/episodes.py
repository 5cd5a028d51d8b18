"""Episodes of grid worlds in C (`episodes.c`): the same bits as the definition in `recombine.tasks.grids`, in one pass.

The functions need a compiled library (`is_available`) and tensors in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.kernels import recycled
from recombine.kernels.compiler import open_kernel

NUM_MOVES = 4


def _define(name: str, pointers: str, sizes: str, *more: tuple[str, type]) -> type[ctypes.Structure]:
    fields = [(field, ctypes.c_void_p) for field in pointers.split()] + [
        (field, ctypes.c_int64) for field in sizes.split()
    ]
    return type(name, (ctypes.Structure,), {"_fields_": (*fields, *more)})


# in the order of episodes.c
_Collection = _define(
    "_Collection",
    "start objects moves worth cells actions present optimal",
    "num_episodes num_objects num_cells num_steps plans_for_remaining threads",
    ("discount", ctypes.c_float),
)
_Placement = _define(
    "_Placement",
    "uniform maze quadrant distance walls quadrants goal start decoy luck",
    "num_episodes num_cells horizon has_decoy",
)
_Pursuit = _define(
    "_Pursuit",
    "start goal maze interaction moves shortest cells actions optimal",
    "num_episodes num_cells num_steps num_interactions",
)
_Observation = _define(
    "_Observation",
    "actions cells present objects kinds codes walls code map scales inputs",
    "num_episodes num_steps num_objects num_kinds num_cells code_size clock threads",
)


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    problems = {"collect": _Collection, "place": _Placement, "pursue": _Pursuit, "observe": _Observation}
    functions = {f"recombine_{name}": [ctypes.POINTER(problem)] for name, problem in problems.items()}
    return open_kernel("episodes.c", [], functions)


def is_available(device: torch.device) -> bool:
    """Whether the kernel takes tensors on this device; the first call compiles it."""
    return device.type == "cpu" and not isinstance(open_library(), str)


def collect(
    start: Int[Tensor, " batch"],
    objects: Int[Tensor, "batch object"],
    worth: Float[Tensor, "batch object"],
    moves: Int[Tensor, "cells moves"],
    *,
    num_steps: int,
    discount: float,
    plans_for_remaining: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The episodes of the preference grid's expert: cells, objects that remain, actions, optimal actions.

    Their shapes are those of `Episodes` in `recombine.tasks.grids.imitation`.
    """
    (batch_size, num_objects), num_cells = objects.shape, len(moves)
    cells, actions = (objects.new_empty(batch_size, num_steps) for _ in range(2))
    present = objects.new_empty(batch_size, num_steps, num_objects, dtype=torch.bool)
    optimal = objects.new_empty(batch_size, num_steps, 1 + NUM_MOVES, dtype=torch.bool)
    given = [tensor.contiguous() for tensor in (start, objects, moves, worth)]
    sizes = (batch_size, num_objects, num_cells, num_steps, plans_for_remaining, torch.get_num_threads())
    problem = _Collection(*_point([*given, cells, actions, present, optimal]), *sizes, discount)
    _run("collect", problem)
    return cells, present, actions, optimal


def place(
    uniform: Float[Tensor, "batch 4 cells"],
    maze: Int[Tensor, " batch"],
    quadrant: Int[Tensor, " batch"],
    distance: Int[Tensor, "maze cells cells"],
    walls: Bool[Tensor, "maze cells"],
    quadrants: Bool[Tensor, "quadrant cells"],
    *,
    horizon: int,
    has_decoy: bool,
) -> tuple[Tensor, Tensor, Tensor, Float[Tensor, "batch cells"]]:
    """What `recombine.tasks.grids.places.place` defines."""
    batch_size, _, num_cells = uniform.shape
    goal, start, decoy = (maze.new_empty(batch_size, 1) for _ in range(3))
    luck = uniform.new_empty(batch_size, num_cells)
    given = [tensor.contiguous() for tensor in (uniform, maze, quadrant, distance, walls, quadrants)]
    problem = _Placement(*_point([*given, goal, start, decoy, luck]), batch_size, num_cells, horizon, has_decoy)
    _run("place", problem)
    return goal, start, decoy[:, : int(has_decoy)], luck


def pursue(
    start: Int[Tensor, " batch"],
    goal: Int[Tensor, " batch"],
    maze: Int[Tensor, " batch"],
    interaction: Int[Tensor, " batch"],
    moves: Int[Tensor, "maze cells moves"],
    shortest: Bool[Tensor, "maze cells cells moves"],
    num_steps: int,
    num_interactions: int,
) -> tuple[Int[Tensor, "batch step"], Int[Tensor, "batch step"], Bool[Tensor, "batch step action"]]:
    """The episodes of the goal grid's expert: cells, actions, optimal actions."""
    cells, actions = (start.new_empty(len(start), num_steps) for _ in range(2))
    optimal = start.new_empty(len(start), num_steps, NUM_MOVES + num_interactions, dtype=torch.bool)
    given = [tensor.contiguous() for tensor in (start, goal, maze, interaction, moves, shortest)]
    sizes = (len(start), moves.shape[1], num_steps, num_interactions)
    problem = _Pursuit(*_point([*given, cells, actions, optimal]), *sizes)
    _run("pursue", problem)
    return cells, actions, optimal


def observe(
    actions: Int[Tensor, "batch step"],
    cells: Int[Tensor, "batch step"],
    present: Bool[Tensor, "batch step object"],
    objects: Int[Tensor, "batch object"],
    kinds: Int[Tensor, "batch object"],
    codes: Float[Tensor, "codes code"],
    walls: Float[Tensor, "maps cells"] | None,
    *,
    code: Int[Tensor, " batch"] | None,
    map: Int[Tensor, " batch"] | None,
    scales: Float[Tensor, " count"],
    num_kinds: int,
    num_cells: int,
    clock: int,
) -> Float[Tensor, "batch step feature"]:
    """Codes and observations; `scales` by the number of ones in an observation."""
    (batch_size, num_steps), code_size = actions.shape, codes.shape[1]
    width = code_size + (num_kinds + 1 + (walls is not None)) * num_cells + clock
    inputs = recycled.empty(batch_size, num_steps, width)
    given = [actions, cells, present, objects, kinds, codes, walls, code, map, scales]
    kept = [tensor if tensor is None else tensor.contiguous() for tensor in given]
    sizes = (batch_size, num_steps, objects.shape[1], num_kinds, num_cells, code_size, clock, torch.get_num_threads())
    problem = _Observation(*_point([*kept, inputs]), *sizes)
    _run("observe", problem)
    return inputs


def _run(name: str, problem: ctypes.Structure) -> None:
    if getattr(open_library(), f"recombine_{name}")(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the values of an episode")


def _point(tensors: Iterable[Tensor | None]) -> list[int | None]:
    tensors = list(tensors)
    types = {tensor.dtype for tensor in tensors if tensor is not None}
    assert types <= {torch.int64, torch.float32, torch.bool}, types
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
