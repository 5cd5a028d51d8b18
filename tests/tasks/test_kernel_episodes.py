"""Episodes in C have the same bits as those of the definition, for every setting of the grid worlds."""

from dataclasses import replace

import pytest
import torch

from recombine.foundation.native import pack_arguments
from recombine.tasks.grids.goal import GoalGrid, RandomDraws, demonstrate_goals
from recombine.tasks.grids.map import tabulate_scales
from recombine.tasks.grids.preference import PreferenceGrid
from recombine.tasks.native import episodes

SMALL_GOALS = GoalGrid.at_scale("tiny")
TASKS = {
    "goal": SMALL_GOALS,
    "goal without decoy": replace(SMALL_GOALS, decoy=False, num_distractors=3),
    "goal alone": replace(SMALL_GOALS, decoy=False, num_distractors=0, horizon=2),
    "hidden walls": replace(SMALL_GOALS, show_walls=False, encoding="parts"),
    "large maze": GoalGrid(grid_size=9, encoding="arbitrary"),
    "preferences": PreferenceGrid.at_scale("tiny"),
    "preferences, published": replace(PreferenceGrid.at_scale("tiny"), expert="published"),
    "one object": PreferenceGrid(num_modules=4, num_active=2, num_features=3, num_objects=1, horizon=1),
    "many objects": PreferenceGrid(num_modules=4, num_active=2, num_features=2, num_objects=7, encoding="orthogonal"),
    "long": PreferenceGrid(num_modules=4, num_active=2, horizon=20, discount=0.5, latents="continuous"),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_as_the_definition(name, threads, monkeypatch):
    task, before = TASKS[name], torch.get_num_threads()
    assert episodes.is_available(torch.device("cpu")), episodes.open_library()
    try:
        torch.set_num_threads(threads)
        fast = [task.sample(split, 3, batch_size=97) for split in ("train", "ood")]
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(episodes, "is_available", lambda device: False)
    for batch, split in zip(fast, ("train", "ood"), strict=True):
        plain = task.sample(split, 3, batch_size=97)
        columns = {"inputs": batch.inputs, "targets": batch.targets, **batch.info}
        expected = {"inputs": plain.inputs, "targets": plain.targets, **plain.info}
        assert columns.keys() == expected.keys()
        for column, value in columns.items():
            assert value.dtype == expected[column].dtype, column
            assert value.numpy().tobytes() == expected[column].contiguous().numpy().tobytes(), column


@pytest.mark.parametrize("num_distractors", [2, 8])
def test_equal_random_numbers_are_left_to_the_definition(num_distractors, monkeypatch):
    """Which of equal cells `topk` takes is its own affair; so is what it takes where too few are free."""
    task = replace(SMALL_GOALS, num_distractors=num_distractors)
    rows = torch.arange(50)
    goals = torch.stack([rows % size for size in task.num_values], dim=1)
    others = torch.zeros(50, num_distractors - 1, dtype=torch.int64)
    world = task._tables("cpu")[0]
    arguments = {"horizon": task.horizon, "has_decoy": True, "num_values": task.num_values}

    torch.manual_seed(0)
    for tied in (False, True):
        uniform = torch.rand(50, 4, 25)
        if tied:
            uniform[7, 3] = 0.5
        draws = RandomDraws(uniform, others, others)
        found = episodes.demonstrate_goals(
            world, draws, goals, task.horizon, has_decoy=True, num_values=task.num_values
        )
        assert (found is None) == tied
        fast = demonstrate_goals(world, draws, goals, **arguments)
        with monkeypatch.context() as patch:
            patch.setattr(episodes, "is_available", lambda device: False)
            plain = demonstrate_goals(world, draws, goals, **arguments)
        assert all(torch.equal(one, other) for one, other in zip(fast, plain, strict=True))


def test_only_tensors_in_memory_are_taken():
    assert not episodes.is_available(torch.device("meta"))
    with torch.device("meta"):
        assert tabulate_scales(6, 1234).is_cpu, "the table is kept for later batches"
    with pytest.raises(AssertionError, match="not in memory"):
        pack_arguments(torch.ones(1), torch.ones(1, device="meta"))
