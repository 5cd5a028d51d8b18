"""Maps of the grid worlds: where moves lead, mazes and shortest paths, and what the agent observes.

A map has height x width cells, numbered in reading order. The four moves are up, right, down, left. A move that would leave
the map or enter a wall has no effect. An observation is a stack of one-hot planes: one per kind of object, one for the
agent, one for the walls (if they are shown), and a one-hot of the remaining steps (if time matters). It is divided by the
root of its mean square (Scaling can lead to compositional generalization, arXiv 2507.07207).

Rooms of a maze lie at the even cells of a square with an odd side. Passages are visited in random order, and each one that
joins two unconnected parts is opened (a random spanning tree, by Kruskal's algorithm). Then a share of the others is opened,
so that there are loops.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.random import Stream
from recombine.tasks.grids.imitation import Episodes
from recombine.tasks.native import episodes as kernel

MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
EPSILON = 1e-6  # of the mean square
EXTRA = 0.25  # share of the remaining closed passages that are opened as well
MAX_REDRAWS = 100
FAR = 1 << 20  # larger than any distance


def tabulate_moves(walls: Bool[Tensor, "height width"]) -> Int[Tensor, "cells moves"]:
    """The cell that each move leads to, from each cell. Moves from inside a wall have no effect."""
    height, width = walls.shape
    cells = torch.arange(height * width).view(height, width)
    table = []
    for down, right in MOVES.values():
        row = (torch.arange(height) + down).clamp(0, height - 1)
        column = (torch.arange(width) + right).clamp(0, width - 1)
        target = cells[row][:, column]
        table.append(torch.where(walls.flatten()[target] | walls, cells, target).flatten())
    return torch.stack(table, dim=1)


def observation_dim(*, num_kinds: int, num_cells: int, walls: bool, clock: int) -> int:
    """Number of features of an observation."""
    return (num_kinds + 1 + walls) * num_cells + clock


def observe(
    episodes: Episodes,
    *,
    codes: Float[Tensor, "codes code"],
    code_index: Int[Tensor, " batch"] | None = None,
    objects: Int[Tensor, "batch object"],
    kinds: Int[Tensor, "batch object"],
    num_kinds: int,
    num_cells: int,
    walls: Float[Tensor, "maps cells"] | None,
    map_index: Int[Tensor, " batch"] | None = None,
    clock: int,
) -> Float[Tensor, "batch step feature"]:
    """The encoding of the task and the observation at each step; empty after the end.

    `code_index` and `map_index` select the row of `codes` and `walls` per episode; without them, there is a code per episode and
    one map.
    `objects` are the cells of the objects; `clock` is the length of the one-hot of the remaining steps, or 0.
    """
    size = observation_dim(num_kinds=num_kinds, num_cells=num_cells, walls=walls is not None, clock=clock)
    if kernel.is_available(codes.device):
        return kernel.observe(
            *(episodes.actions, episodes.cells, episodes.present, objects, kinds, codes, walls),
            code_index=code_index,
            map_index=map_index,
            scales=tabulate_scales(objects.shape[1] + num_cells + 3, size),
            num_kinds=num_kinds,
            num_cells=num_cells,
            clock=clock,
        )
    encoding = codes if code_index is None else codes[code_index]
    walls = walls if walls is None or map_index is None else walls[map_index]
    batch_size, num_steps = episodes.actions.shape
    first = encoding.shape[1]  # planes begin here: kinds, agent, walls; then the clock
    count = episodes.present.sum(dim=2) + (1 + bool(clock))
    if walls is not None:
        count = count + walls.sum(dim=1, keepdim=True)
    scale = normalise(episodes.active, count, size)

    inputs = encoding.new_empty(batch_size, num_steps, first + size)
    torch.mul(encoding[:, None], episodes.active[..., None], out=inputs[..., :first])
    inputs[..., first:] = 0
    where = (first + kinds * num_cells + objects)[:, None].expand(-1, num_steps, -1)
    inputs.scatter_(2, where, episodes.present * scale[..., None])
    agent = first + num_kinds * num_cells
    inputs.scatter_(2, (agent + episodes.cells)[..., None], scale[..., None])
    if walls is not None:
        torch.mul(walls[:, None], scale[..., None], out=inputs[..., agent + num_cells : agent + 2 * num_cells])
    if clock:
        step = torch.arange(num_steps, device=encoding.device)
        inputs[:, step, first + size - 1 - step] = scale
    return inputs


def normalise(
    active: Bool[Tensor, "*shape"], count: Int[Tensor, "*shape"] | Float[Tensor, "*shape"], size: int
) -> Float[Tensor, "*shape"]:
    """What the ones of an observation become, if so many of its `size` features are ones; 0 after the end."""
    return active / (count.float() / size + EPSILON).sqrt()


@cache
def tabulate_scales(num_counts: int, size: int) -> Float[Tensor, " count"]:
    """`normalise` of each number of ones, on the CPU even where another device is the default."""
    counts = torch.arange(num_counts, device="cpu")
    return normalise(torch.ones_like(counts, dtype=torch.bool), counts, size)


def draw_mazes(*key: object, num_mazes: int, size: int) -> Bool[Tensor, "maze height width"]:
    """Different mazes, True where there is a wall. The first mazes do not depend on the number of mazes."""
    mazes: list[Tensor] = []
    for redraw in range(MAX_REDRAWS):
        maze = _draw_maze(Stream(*key, "maze", redraw, rows=range(1)), size)
        if not any(torch.equal(maze, other) for other in mazes):
            mazes.append(maze)
        if len(mazes) == num_mazes:
            return torch.stack(mazes)
    raise InputError(f"grid_size is {size}: expected more, since fewer than {num_mazes} mazes of that size were found")


def _draw_maze(stream: Stream, size: int) -> Bool[Tensor, "height width"]:
    walls = torch.ones(size, size, dtype=torch.bool)
    walls[::2, ::2] = False
    passages = [(row, column) for row in range(size) for column in range(size) if (row + column) % 2]
    part = {(row, column): (row, column) for row in range(0, size, 2) for column in range(0, size, 2)}

    def find(room: tuple[int, int]) -> tuple[int, int]:
        while part[room] != room:
            room = part[room]
        return room

    shut = []
    for number in stream.permutations(len(passages))[0].tolist():
        row, column = passages[number]
        down = row % 2
        one, other = find((row - down, column - 1 + down)), find((row + down, column + 1 - down))
        if one == other:
            shut.append((row, column))
        else:
            part[one] = other
            walls[row, column] = False
    for row, column in shut[: round(EXTRA * len(shut))]:
        walls[row, column] = False
    return walls


def find_shortest_paths(
    walls: Bool[Tensor, "height width"],
) -> tuple[Int[Tensor, "cells moves"], Int[Tensor, "cells cells"], Bool[Tensor, "cells cells moves"]]:
    """Where moves lead; lengths of the shortest paths from each cell (first) to each other, FAR if there is none; the moves
    with which such paths begin.
    """
    moves = tabulate_moves(walls)
    open_cells = ~walls.flatten()
    distance = torch.where(torch.eye(len(moves), dtype=torch.bool) & open_cells, 0, FAR)
    while True:
        shorter = torch.minimum(distance, (distance[moves].amin(dim=1) + 1).clamp_max(FAR))
        if torch.equal(shorter, distance):
            return moves, distance, (distance[moves] == distance[:, None] - 1).transpose(1, 2)
        distance = shorter
