"""The goal grid: mazes, shortest ways, instructions, splits, scores, pictures."""

import json
from collections import deque
from dataclasses import replace

import pytest
import torch

from recombine.cli.main import run
from recombine.tasks.grids.goal import INTERACTIONS, OBJECTS, QUADRANTS, GoalGrid
from recombine.tasks.grids.imitation import ENDED
from recombine.tasks.grids.map import FAR, MOVES

TASK = GoalGrid()
SMALL = GoalGrid(grid_size=7, horizon=9, num_distractors=3, num_mazes=3, num_objects=4, num_interactions=2)


def search(maze, start: int) -> dict[int, int]:
    """Steps to every cell that can be reached, by breadth-first search."""
    size, steps, waiting = len(maze), {start: 0}, deque([start])
    while waiting:
        cell = waiting.popleft()
        for down, right in MOVES.values():
            row, column = cell // size + down, cell % size + right
            if 0 <= row < size and 0 <= column < size and not maze[row][column] and row * size + column not in steps:
                steps[row * size + column] = steps[cell] + 1
                waiting.append(row * size + column)
    return steps


@pytest.mark.parametrize("task", [TASK, SMALL, GoalGrid(grid_size=5, horizon=4, seed=3)])
def test_ways_are_shortest(task):
    for number, maze in enumerate(task.mazes.tolist()):
        for cell in range(task.grid_size**2):
            steps = search(maze, cell) if not maze[cell // task.grid_size][cell % task.grid_size] else {}
            expected = [steps.get(other, FAR) for other in range(task.grid_size**2)]
            assert task.world.distance[number, cell].tolist() == expected


def test_mazes_hang_together_and_differ():
    for seed in range(5):
        mazes = GoalGrid(seed=seed).mazes
        assert len({tuple(maze.flatten().tolist()) for maze in mazes}) == 5
        for maze in mazes:
            assert len(search(maze.tolist(), 0)) == int((~maze).sum())
    assert torch.equal(GoalGrid(num_mazes=3).mazes, TASK.mazes[:3])


@pytest.mark.parametrize(
    "task", [TASK, SMALL, replace(SMALL, decoy=False), GoalGrid(grid_size=5, horizon=3, num_distractors=8)]
)
def test_every_episode_reaches_its_goal_by_a_shortest_way(task):
    batch = task.sample("ood", 1, batch_size=60)
    for row in range(60):
        quadrant, interaction, number, kind = (batch.latents[row] - torch.tensor(task.offsets)).tolist()
        maze, goal = task.mazes[number].tolist(), batch.info["objects"][row, 0].item()
        steps = search(maze, goal)
        actions = [action for action in batch.targets[row].tolist() if action != ENDED]
        cells = batch.info["cells"][row].tolist()
        assert 1 <= steps[cells[0]] == len(actions) - 1 < task.horizon
        assert actions[-1] == len(MOVES) + interaction
        assert cells[len(actions) - 1] == goal
        for step, action in enumerate(actions):
            optimal = batch.info["optimal"][row, step].nonzero()[:, 0].tolist()
            assert action == optimal[0]
            if step == len(actions) - 1:
                assert optimal == [action]
                continue
            nearer = [
                move
                for move, (down, right) in enumerate(MOVES.values())
                if comes_nearer(steps, cells[step], down, right, task)
            ]
            assert optimal == nearer
            down, right = list(MOVES.values())[action]
            assert cells[step + 1] == cells[step] + down * task.grid_size + right
        check_objects(task, batch, row, quadrant, maze, kind)


def comes_nearer(steps, cell, down, right, task):
    row, column = cell // task.grid_size + down, cell % task.grid_size + right
    inside = 0 <= row < task.grid_size and 0 <= column < task.grid_size
    return inside and steps.get(row * task.grid_size + column, FAR) == steps[cell] - 1


def check_objects(task, batch, row, quadrant, maze, kind):
    """The goal is the only object of its kind in its quadrant; a decoy lies elsewhere; no two things share a cell."""
    cells, kinds = batch.info["objects"][row].tolist(), batch.info["kinds"][row].tolist()
    middle = task.grid_size // 2
    where = [2 * (cell // task.grid_size > middle) + (cell % task.grid_size > middle) for cell in cells]
    assert not any(maze[cell // task.grid_size][cell % task.grid_size] for cell in cells)
    assert len({*cells, batch.info["cells"][row, 0].item()}) == len(cells) + 1 == task.num_distractors + 2
    named = [number for number, each in enumerate(zip(where, kinds, strict=True)) if each == (quadrant, kind)]
    assert named == [0]
    assert kinds.count(kind) >= 2 if task.decoy else kinds.count(kind) == 1


@pytest.mark.parametrize("task", [SMALL, replace(SMALL, show_walls=False, encoding="parts")])
def test_tokens_of_an_episode(task):
    """The code of the goal, a plane for each kind, the agent, the walls where they are shown; mean square 1."""
    batch = task.sample("test", 2, batch_size=10)
    for row in range(10):
        goal = tuple((batch.latents[row] - torch.tensor(task.offsets)).tolist())
        for step in range(task.horizon):
            token = batch.inputs[row, step]
            if batch.targets[row, step] == ENDED:
                assert not token.any()
                continue
            planes = torch.zeros(task.num_objects + 1 + task.show_walls, task.grid_size**2)
            planes[batch.info["kinds"][row], batch.info["objects"][row]] = 1
            planes[task.num_objects, batch.info["cells"][row, step]] = 1
            if task.show_walls:
                planes[-1] = task.mazes[goal[2]].flatten()
            assert torch.equal(token[: task.encoding_dim], task.encodings[goal])
            expected = planes.flatten() / planes.square().mean().sqrt()
            assert torch.allclose(token[task.encoding_dim :], expected, atol=1e-3)
    assert batch.inputs.shape == (10, task.sequence_length, task.input_dim)


def test_sizes_and_splits():
    certificate = TASK.split.certificate
    assert (certificate.num_train, certificate.num_ood, certificate.overlap) == (375, 125, 0)
    assert len(certificate.coverage) == 4 + 5 + 5 + 5
    assert certificate.connected
    assert certificate.min_coverage > 0
    assert (TASK.output_dim, TASK.sequence_length) == (9, 20)


def test_instructions():
    """Twelve words each, all different; each part is said by its own words."""
    goals = [*TASK.split.train, *TASK.split.ood]
    sentences = [TASK.describe(goal) for goal in goals]
    assert len(set(sentences)) == 500
    assert len({name[0] for name in OBJECTS}) == len(OBJECTS)  # the letters of the map
    assert {len(sentence.split()) for sentence in sentences} == {12}
    assert TASK.describe((3, 4 + 1, 9 + 2, 14 + 1)) == "in maze three go to the lower right and push the book"
    assert [TASK.describe((module,)) for module in (0, 4, 9, 18)] == [
        QUADRANTS[0],
        INTERACTIONS[0],
        "maze one",
        OBJECTS[4],
    ]
    assert TASK.encoding_dim == 12 * len({word for sentence in sentences for word in sentence.split()})


def test_encodings_tell_goals_apart_and_only_the_arbitrary_one_hides_their_parts():
    for encoding, shared in (("instruction", True), ("parts", True), ("arbitrary", False)):
        codes = replace(TASK, encoding=encoding).encodings
        assert len(codes.flatten(0, 3).unique(dim=0)) == 500
        one, same_object = codes[0, 0, 0, 0], codes[3, 4, 4, 0]
        assert bool(one @ same_object > one @ codes[3, 4, 4, 1]) == shared


@pytest.mark.parametrize(("name", "gain"), [("goal-grid", 0.3), ("preference-grid", 0.15)])
def test_training_from_the_command_line_learns(name, gain, tmp_path, capsys):
    flags = ["--scale", "tiny", "--steps", "150", "--evaluation-instances", "1000", "--out", str(tmp_path), "--json"]
    assert run(["train", name, *flags]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    for split in ("test", "ood"):
        accuracy = scores[split]["action_accuracy"]
        assert accuracy["value"] > accuracy["chance"] + gain
        assert accuracy["ceiling"] == 1


def test_golden_episode():
    """The first training episode may never change."""
    batch = TASK.sample("train", 0, batch_size=1)
    assert batch.latents.tolist() == [[3, 8, 9, 17]]
    assert batch.targets.tolist() == [[3, 8, *[ENDED] * 18]]
    assert batch.info["objects"].tolist() == [[94, 114, 50, 61, 3]]
    assert batch.info["kinds"].tolist() == [[3, 3, 4, 1, 1]]
