"""Episodes of grid worlds in C (`episodes.c`): the same bits as the definitions in `recombine.tasks.grids`, in one pass.

The functions require a compiled library (`is_available`) and tensors in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.foundation.native import empty_block, open_kernel, pack_arguments

NUM_MOVES = 4
MAX_OTHERS, MAX_CELLS = 8, 1024  # as in episodes.c


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    address = ctypes.c_void_p
    functions: dict[str, Sequence[Any]] = {
        "recombine_demonstrate_preferences": [address, ctypes.c_float],
        "recombine_demonstrate_goals": [address],
        "recombine_observe": [address],
    }
    return open_kernel(Path(__file__).with_suffix(".c"), functions)


def is_available(device: torch.device) -> bool:
    """Whether the kernel accepts tensors on this device; the first call compiles it."""
    return device.type == "cpu" and not isinstance(open_library(), str)


def demonstrate_preferences(
    start: Int[Tensor, " batch"],
    objects: Int[Tensor, "batch object"],
    worth: Float[Tensor, "batch object"],
    moves: Int[Tensor, "cells moves"],
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
    given = _make_contiguous(start, objects, moves, worth)
    sizes = (batch_size, num_objects, num_cells, num_steps, plans_for_remaining, torch.get_num_threads())
    _check_memory(
        _library().recombine_demonstrate_preferences(
            pack_arguments(*given, cells, actions, present, optimal, *sizes), discount
        )
    )
    return cells, present, actions, optimal


def demonstrate_goals(
    world: Sequence[Tensor],
    draws: tuple[Float[Tensor, "batch 4 cells"], Int[Tensor, "batch others"], Int[Tensor, "batch others"]],
    goals: Int[Tensor, "batch 4"],
    num_steps: int,
    *,
    has_decoy: bool,
    num_values: tuple[int, int, int, int],
) -> tuple[Tensor, ...] | None:
    """What `recombine.tasks.grids.goal.demonstrate_goals` defines: objects, kinds, codes, mazes, cells, actions, optimal actions.

    None if cells have the same random number, so that it depends on the definition which of them is taken.
    """
    (batch_size, num_others), num_cells, num_interactions = draws[1].shape, world[0].shape[1], num_values[1]
    assert num_others <= MAX_OTHERS
    assert num_cells <= MAX_CELLS
    objects, kinds = (goals.new_empty(batch_size, 1 + has_decoy + num_others) for _ in range(2))
    code, maze = (goals.new_empty(batch_size) for _ in range(2))
    cells, actions = (goals.new_empty(batch_size, num_steps) for _ in range(2))
    optimal = goals.new_empty(batch_size, num_steps, NUM_MOVES + num_interactions, dtype=torch.bool)
    given = _make_contiguous(*world, *draws, goals)
    made = (objects, kinds, code, maze, cells, actions, optimal)
    sizes = (batch_size, num_cells, num_steps, has_decoy, num_others, *num_values[1:], torch.get_num_threads())
    is_tied = _library().recombine_demonstrate_goals(pack_arguments(*given, *made, *sizes))
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
    code_index: Int[Tensor, " batch"] | None,
    map_index: Int[Tensor, " batch"] | None,
    scales: Float[Tensor, " count"],
    num_kinds: int,
    num_cells: int,
    clock: int,
) -> Float[Tensor, "batch step feature"]:
    """Codes and observations; `scales` by the number of ones in an observation."""
    (batch_size, num_steps), code_size = actions.shape, codes.shape[1]
    width = code_size + (num_kinds + 1 + (walls is not None)) * num_cells + clock
    inputs = empty_block(batch_size, num_steps, width)
    given = _make_contiguous(actions, cells, present, objects, kinds, codes, walls, code_index, map_index, scales)
    sizes = (batch_size, num_steps, objects.shape[1], num_kinds, num_cells, code_size, clock, torch.get_num_threads())
    _check_memory(_library().recombine_observe(pack_arguments(*given, inputs, *sizes)))
    return inputs


def _library() -> ctypes.CDLL:
    library = open_library()
    assert not isinstance(library, str), library
    return library


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("not enough memory for the values of an episode")


def _make_contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    types = {tensor.dtype for tensor in tensors if tensor is not None}
    assert types <= {torch.int64, torch.float32, torch.bool}, types
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]
