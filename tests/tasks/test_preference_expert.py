"""The expert of the preference grid against a plain search over all plans."""

from functools import cache

import pytest
import torch

from recombine.tasks.grids.imitation import ENDED
from recombine.tasks.grids.preference import ACTIONS, LAYOUT, PreferenceGrid

TASK = PreferenceGrid()


PUBLISHED = PreferenceGrid(expert="published")


STEPS = {"nothing": (0, 0), "up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


MAP = LAYOUT.split()


class World:
    """One map, by the rules alone: a place is (row, column), and what is left is a set of places."""

    def __init__(self, batch, row: int, discount: float) -> None:
        places = [divmod(cell, len(MAP[0])) for cell in batch.info["objects"][row].tolist()]
        self.rewards = dict(zip(places, batch.info["worth"][row].double().tolist(), strict=True))
        self.discount = discount
        self.best = cache(self._best)

    def step(self, place, left, action):
        """Where an action leads, what is left then, and the reward."""
        down, right = STEPS[action]
        target = (place[0] + down, place[1] + right)
        target = place if MAP[target[0]][target[1]] == "#" else target
        return target, left - {target}, self.rewards[target] if target in left else 0.0

    def value(self, place, left, num_steps: int, action: str) -> float:
        if action == "nothing":
            return 0.0
        target, rest, reward = self.step(place, left, action)
        return reward + self.discount * self.best(target, rest, num_steps - 1)

    def _best(self, place, left, num_steps: int) -> float:
        return max(self.value(place, left, num_steps, action) for action in ACTIONS) if num_steps else 0.0

    def optimal(self, place, left, num_steps: int) -> list[bool]:
        values = [self.value(place, left, num_steps, action) for action in ACTIONS]
        return [max(values) - value < 1e-6 for value in values]


def follow(task: PreferenceGrid, batch, row: int) -> tuple[list[list[bool]], float]:
    """What a plain search finds optimal at each step of the episode, and what the episode earns in all."""
    world = World(batch, row, task.discount)
    place, left = divmod(batch.info["cells"][row, 0].item(), len(MAP[0])), frozenset(world.rewards)
    optimal, earned = [], 0.0
    for step, action in enumerate(batch.targets[row].tolist()):
        if action == ENDED:
            break
        assert divmod(batch.info["cells"][row, step].item(), len(MAP[0])) == place
        optimal.append(world.optimal(place, left, task.horizon - (step if task.expert == "remaining_steps" else 0)))
        place, left, reward = world.step(place, left, ACTIONS[action])
        earned += task.discount**step * reward
    return optimal, earned


@pytest.mark.parametrize(
    ("task", "num_tasks"),
    [(TASK, 1_000), (PUBLISHED, 200), (PreferenceGrid(num_objects=6, horizon=5, discount=0.7, num_features=2), 100)],
)
def test_the_expert_agrees_with_a_plain_search(task, num_tasks):
    batch = task.sample("ood", 0, batch_size=num_tasks)
    for row in range(num_tasks):
        optimal, earned = follow(task, batch, row)
        assert batch.info["optimal"][row, : len(optimal)].tolist() == optimal
        assert batch.targets[row, : len(optimal)].tolist() == [best.index(True) for best in optimal]
        assert (batch.targets[row, len(optimal) :] == ENDED).all()
        if task.expert == "remaining_steps":
            world = World(batch, row, task.discount)
            start = divmod(batch.info["cells"][row, 0].item(), len(MAP[0]))
            assert earned == pytest.approx(world.best(start, frozenset(world.rewards), task.horizon), abs=1e-5)


def test_the_published_expert_runs_out_of_time():
    """It follows values of eight more steps at every step, and so misses in some episodes what it walks to."""
    ours, theirs = (task.sample("train", 0, batch_size=1_000) for task in (TASK, PUBLISHED))
    assert torch.equal(ours.info["worth"], theirs.info["worth"])
    differ = (ours.targets != theirs.targets).any(dim=1).nonzero()[:, 0].tolist()
    gains = [follow(TASK, ours, row)[1] - follow(PUBLISHED, theirs, row)[1] for row in differ]
    assert min(gains) > -1e-6
    assert 0.01 < sum(gain > 1e-6 for gain in gains) / 1_000 < 0.15


def test_what_objects_are_worth():
    for latents in ("discrete", "k_hot", "continuous"):
        batch = PreferenceGrid(latents=latents).sample("train", 1, batch_size=50)
        strengths, kinds = batch.info["strengths"], batch.info["kinds"]
        expected = torch.einsum("bm,mof->bof", strengths, TASK.basis[:, None].expand(-1, 4, -1)).gather(
            2, kinds[..., None]
        )
        assert torch.allclose(batch.info["worth"], expected[..., 0], atol=1e-5)
        active = [sorted(row.nonzero()[:, 0].tolist()) for row in strengths]
        assert active == [[module for module in row if module >= 0] for row in batch.latents.tolist()]
        levels = strengths[strengths > 0]
        assert {"discrete": len(levels.unique()) == 6, "k_hot": (levels == 1).all()}.get(
            latents, len(levels.unique()) > 20
        )
        assert levels.min() >= 0.5
    assert abs(TASK.basis.mean()) < 0.2
    assert abs(TASK.basis.std() - 1) < 0.2
