"""Mazes of the goal grid, and shortest paths through them.

Rooms lie at the even cells of a square with an odd side. Passages are visited in random order, and each one that joins two
unconnected parts is opened (a random spanning tree, by Kruskal's algorithm). Then a share of the others is opened, so that
there are loops.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from recombine.errors import InputError
from recombine.tasks.grids.map import tabulate_moves
from recombine.tasks.stream import Stream

EXTRA = 0.25  # share of the remaining closed passages that are opened as well
MAX_REDRAWS = 100
FAR = 1 << 20  # larger than any distance


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


def measure_ways(walls: Bool[Tensor, "height width"]) -> tuple[Int[Tensor, "cells cells"], Int[Tensor, "cells moves"]]:
    """Length of the shortest path from each cell (first) to each other, FAR if there is none; and where moves lead."""
    moves = tabulate_moves(walls)
    open_cells = ~walls.flatten()
    distance = torch.where(torch.eye(len(moves), dtype=torch.bool) & open_cells, 0, FAR)
    while True:
        shorter = torch.minimum(distance, (distance[moves].amin(dim=1) + 1).clamp_max(FAR))
        if torch.equal(shorter, distance):
            return distance, moves
        distance = shorter


def find_optimal_moves(
    distance: Int[Tensor, "cells cells"], moves: Int[Tensor, "cells moves"]
) -> Bool[Tensor, "cells cells moves"]:
    """Which moves from a cell (first) lead one step closer to another."""
    return (distance[moves] == distance[:, None] - 1).transpose(1, 2)
