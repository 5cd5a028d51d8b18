"""The goal grid as text: a map and an instruction; the answer is the whole plan, moves and interaction.

A plan is right if it is as short as possible, which several plans can be. Of a wrong plan, the steps before its first mistake
count as right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recombine.tasks.batch import Batch
from recombine.tasks.grids.goal import INTERACTIONS, OBJECTS, GoalGrid
from recombine.tasks.grids.imitation import ENDED
from recombine.tasks.grids.map import MOVES
from recombine.tasks.text import TextForm


class GoalGridText(TextForm):
    """Maps as characters, actions as words."""

    task: GoalGrid

    @property
    def actions(self) -> list[str]:
        return [*MOVES, *INTERACTIONS[: self.task.num_interactions]]

    @property
    def instructions(self) -> str:
        letters = ", ".join(f"{name[0]} {name}" for name in OBJECTS[: self.task.num_objects])
        walls = "# wall, " if self.task.show_walls else ""
        return (
            f"A map shows an agent in a maze: @ agent, {walls}. free, {letters}. The agent moves up, right, down or left by "
            "one cell and cannot enter a wall or leave the map. The middle row belongs to the upper half and the middle "
            "column to the left half. Follow the instruction: walk to the object along a shortest path, over other objects "
            "if need be, then perform the action on it."
        )

    @property
    def answer_format(self) -> str:
        return "all steps as words, separated by spaces, such as `up up right lift`, and nothing else"

    @property
    def pattern(self) -> str:
        interactions = "|".join(self.actions[len(MOVES) :])
        return rf"(?:(?:{'|'.join(MOVES)}),? )+(?:{interactions})"

    @property
    def around(self) -> tuple[str, str]:
        return r"\b", r"\b"

    def write_question(self, batch: Batch, row: int) -> str:
        size, maze = self.task.grid_size, self._maze(batch, row)
        hidden = not self.task.show_walls
        letters = ["." if hidden or not wall else "#" for wall in self.task.mazes[maze].flatten().tolist()]
        for cell, kind in zip(*(batch.info[name][row].tolist() for name in ("objects", "kinds")), strict=True):
            letters[cell] = OBJECTS[kind][0]
        letters[int(batch.info["cells"][row, 0])] = "@"
        lines = ["".join(letters[first : first + size]) for first in range(0, len(letters), size)]
        return "\n".join([*lines, f"Instruction: {self.task.describe(tuple(batch.latents[row].tolist()))}"])

    def write_answers(self, batch: Batch, row: int) -> list[str]:
        """Every shortest plan, the expert's first."""
        moves, _, optimal = self.task.ways
        maze, goal = self._maze(batch, row), int(batch.info["objects"][row, 0])
        plans: list[tuple[list[int], int]] = [([], int(batch.info["cells"][row, 0]))]
        while plans[0][1] != goal:
            plans = [
                ([*plan, action], int(moves[maze, cell, action]))
                for plan, cell in plans
                for action in optimal[maze, cell, goal].nonzero()[:, 0].tolist()
            ]
        last = int(batch.targets[row][batch.targets[row] != ENDED][-1])
        return [" ".join(self.actions[action] for action in (*plan, last)) for plan, _ in plans]

    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """The expert's actions up to the first mistake of the plan, wrong ones from there on."""
        wrong = batch.info["optimal"].int().argmin(dim=-1)
        chosen = batch.targets.clone()
        for row, answer in enumerate(answers):
            steps = 0 if answer is None else self._count_right(batch, row, answer.split())
            chosen[row, steps:] = torch.where(batch.targets[row, steps:] == ENDED, ENDED, wrong[row, steps:])
        return self.task.predict_answers(chosen)

    def _count_right(self, batch: Batch, row: int, plan: list[str]) -> int:
        """The number of steps before the first mistake; as many as there are if the plan is right."""
        moves, _, optimal = self.task.ways
        maze, goal = self._maze(batch, row), int(batch.info["objects"][row, 0])
        cell = int(batch.info["cells"][row, 0])
        last = int(batch.targets[row][batch.targets[row] != ENDED][-1])
        for step, name in enumerate(plan):
            action = self.actions.index(name)
            if cell == goal:
                return step + (action == last and step + 1 == len(plan))
            if action >= len(MOVES) or not optimal[maze, cell, goal, action]:
                return step
            cell = int(moves[maze, cell, action])
        return len(plan)

    def _maze(self, batch: Batch, row: int) -> int:
        return int(batch.latents[row, 2]) - self.task.offsets[2]
