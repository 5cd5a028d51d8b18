"""Episodes of grid worlds in C (`episodes.c`): the same bits as the definition in `recombine.tasks.grids`, in one pass.

The functions need a compiled library (`is_available`) and tensors in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.foundation.native import empty_block, open_kernel

NUM_MOVES = 4
MOST_OTHERS, MOST_CELLS = 8, 1024  # as in episodes.c


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
_Pursuit = _define(
    "_Pursuit",
    "moves distance shortest walls quadrants uniform anything something_else goals "
    "objects kinds code maze cells actions optimal",
    "num_episodes num_cells num_steps has_decoy num_others num_interactions num_mazes num_kinds threads",
)
_Observation = _define(
    "_Observation",
    "actions cells present objects kinds codes walls code map scales inputs",
    "num_episodes num_steps num_objects num_kinds num_cells code_size clock threads",
)


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    problems = {"collect": _Collection, "pursue": _Pursuit, "observe": _Observation}
    functions = {f"recombine_{name}": [ctypes.POINTER(problem)] for name, problem in problems.items()}
    return open_kernel(Path(__file__).with_suffix(".c"), functions)


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


def pursue(
    moves: Int[Tensor, "maze cells moves"],
    distance: Int[Tensor, "maze cells cells"],
    shortest: Bool[Tensor, "maze cells cells moves"],
    walls: Bool[Tensor, "maze cells"],
    quadrants: Bool[Tensor, "quadrant cells"],
    uniform: Float[Tensor, "batch 4 cells"],
    anything: Int[Tensor, "batch others"],
    something_else: Int[Tensor, "batch others"],
    goals: Int[Tensor, "batch 4"],
    *,
    num_steps: int,
    has_decoy: bool,
    num_values: tuple[int, int, int, int],
) -> tuple[Tensor, ...] | None:
    """What `recombine.tasks.grids.goal.pursue` defines: objects, kinds, codes, mazes, cells, actions, optimal actions.

    None if cells have the same random number, so that it depends on the definition which of them is taken.
    """
    (batch_size, num_others), num_cells, num_interactions = anything.shape, moves.shape[1], num_values[1]
    assert (num_others <= MOST_OTHERS, num_cells <= MOST_CELLS) == (True, True)
    objects, kinds = (goals.new_empty(batch_size, 1 + has_decoy + num_others) for _ in range(2))
    code, maze = (goals.new_empty(batch_size) for _ in range(2))
    cells, actions = (goals.new_empty(batch_size, num_steps) for _ in range(2))
    optimal = goals.new_empty(batch_size, num_steps, NUM_MOVES + num_interactions, dtype=torch.bool)
    given = (moves, distance, shortest, walls, quadrants, uniform, anything, something_else, goals)
    kept = [tensor.contiguous() for tensor in given]
    made = (objects, kinds, code, maze, cells, actions, optimal)
    sizes = (batch_size, num_cells, num_steps, has_decoy, num_others, *num_values[1:], torch.get_num_threads())
    is_tied = _library().recombine_pursue(ctypes.byref(_Pursuit(*_point([*kept, *made]), *sizes)))
    return None if is_tied else made


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
    inputs = empty_block(batch_size, num_steps, width)
    given = [actions, cells, present, objects, kinds, codes, walls, code, map, scales]
    kept = [tensor if tensor is None else tensor.contiguous() for tensor in given]
    sizes = (batch_size, num_steps, objects.shape[1], num_kinds, num_cells, code_size, clock, torch.get_num_threads())
    problem = _Observation(*_point([*kept, inputs]), *sizes)
    _run("observe", problem)
    return inputs


def _library() -> ctypes.CDLL:
    library = open_library()
    assert not isinstance(library, str), library
    return library


def _run(name: str, problem: ctypes.Structure) -> None:
    if getattr(_library(), f"recombine_{name}")(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the values of an episode")


def _point(tensors: Iterable[Tensor | None]) -> list[int | None]:
    tensors = list(tensors)
    types = {tensor.dtype for tensor in tensors if tensor is not None}
    assert types <= {torch.int64, torch.float32, torch.bool}, types
    assert all(tensor is None or tensor.is_cpu for tensor in tensors), "a tensor is not in memory"
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
