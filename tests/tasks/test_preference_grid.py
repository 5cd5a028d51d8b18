"""The preference grid: an expert that an independent solver confirms, observations, splits, scores, pictures."""

from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from recombine.cli.main import run
from recombine.foundation.errors import InputError
from recombine.tasks.grids.imitation import ENDED
from recombine.tasks.grids.preference import ACTIONS, LAYOUT, PreferenceGrid
from recombine.training.score import score_references

TASK = PreferenceGrid()
PUBLISHED = PreferenceGrid(expert="published")
MAP = LAYOUT.split()


STEPS = {"nothing": (0, 0), "up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


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


@pytest.mark.parametrize("task", [TASK, PUBLISHED, PreferenceGrid(encoding="tokens", num_features=3)])
def test_tokens_of_an_episode(task):
    """The encoding, a plane for each kind, the agent, the walls, and the steps left; mean square 1."""
    batch = task.sample("test", 2, batch_size=20)
    walls = torch.tensor([[cell == "#" for cell in line] for line in MAP]).flatten().float()
    for row in range(20):
        for step in range(task.horizon):
            token = batch.inputs[row, step]
            if batch.targets[row, step] == ENDED:
                assert not token.any()
                continue
            planes = torch.zeros(task.num_features + 2, 49)
            for number in range(task.num_objects):
                if batch.info["present"][row, step, number]:
                    planes[batch.info["kinds"][row, number], batch.info["objects"][row, number]] = 1
            planes[-2, batch.info["cells"][row, step]] = 1
            planes[-1] = walls
            clock: Any = (
                one_hot(torch.tensor(task.horizon - 1 - step), task.horizon) if task.expert != "published" else []
            )
            expected = torch.cat([planes.flatten(), torch.as_tensor(clock).float()])
            seen = token[task.encoding_dim :]
            assert torch.allclose(seen, expected / expected.square().mean().sqrt(), atol=1e-4)
            if task.encoding == "identity":
                assert torch.equal(token[: task.encoding_dim], batch.info["strengths"][row])
            else:
                assert torch.equal(token[: task.encoding_dim], batch.inputs[row, 0, : task.encoding_dim])
    assert batch.inputs.shape == (20, task.sequence_length, task.input_dim)


def test_sizes_and_splits():
    assert TASK.input_dim == 16 + 49 * 18 + 8
    assert PUBLISHED.input_dim == 16 + 49 * 18
    assert (TASK.output_dim, TASK.num_read, len(TASK.free)) == (5, 8, 19)
    certificate = TASK.split.certificate
    assert (certificate.num_train, certificate.num_ood, certificate.overlap) == (522, 174, 0)
    assert certificate.connected
    assert not PreferenceGrid(support="disconnected").split.certificate.connected
    assert PreferenceGrid(support="non_compositional").split.certificate.min_coverage == 0


def test_golden_episode():
    """The first training episode may never change."""
    batch = TASK.sample("train", 0, batch_size=1)
    assert batch.latents.tolist() == [[1, 7, -1]]
    assert batch.targets.tolist() == [[1, 4, 1, 4, 4, 1, 3, 3]]
    assert batch.info["objects"].tolist() == [[11, 30, 16, 36]]


def test_any_optimal_action_is_right_and_nothing_else():
    batch = TASK.sample("test", 0, batch_size=200)
    optimal, active = batch.info["optimal"], batch.targets != ENDED
    last = optimal.float() * torch.arange(1, 6)  # the last of the optimal actions, not the first
    best = TASK.best_predictions(batch, split="test", metric="action_accuracy")
    for predictions, expected in ((best, 1.0), (last, 1.0), (-last, 0.0)):
        metrics = TASK.metrics(predictions, batch)
        ratio = metrics["action_accuracy"].numerator.sum() / metrics["action_accuracy"].denominator.sum()
        assert ratio == expected or (expected == 0 and ratio == optimal[active].all(dim=-1).double().mean())
    broken = best.clone()
    broken[0, 0] = (~optimal[0, 0]).float()
    assert not optimal[0, 0].all()
    whole = TASK.metrics(broken, batch)["trajectory_accuracy"].numerator
    assert whole.tolist() == [0.0, *[1.0] * 199]


def test_steps_after_the_end_count_for_nothing():
    batch = TASK.sample("test", 0, batch_size=50)
    ended = batch.targets == ENDED
    assert ended.any()
    predictions = torch.randn(50, 8, 5)
    other = torch.where(ended[..., None], torch.randn(50, 8, 5), predictions)
    assert torch.equal(TASK.loss(predictions, batch), TASK.loss(other, batch))
    assert all(
        torch.equal(mine, theirs)
        for name, ratio in TASK.metrics(predictions, batch).items()
        for mine, theirs in zip(ratio, TASK.metrics(other, batch)[name], strict=True)
    )
    log_probability = predictions.log_softmax(dim=-1)[~ended].gather(1, batch.targets[~ended][:, None])
    assert TASK.loss(predictions, batch).item() == pytest.approx(-log_probability.mean().item(), rel=1e-5)
    with pytest.raises(InputError, match=r"shape \(50, 8, 4\): expected \(batch, 8 steps, 5 actions\)"):
        TASK.loss(predictions[..., :4], batch)


def test_chance_is_the_best_constant_and_the_expert_the_ceiling():
    references = score_references(TASK, num_instances=2_000)
    batch = TASK.sample("test", 0, batch_size=2_000)
    constants = [batch.info["optimal"][batch.targets != ENDED][:, action].double().mean() for action in range(5)]
    assert TASK.best_constant == int(torch.stack(constants).argmax())
    for split in ("test", "ood"):
        assert all(metric["ceiling"] == 1 for metric in references[split].values())
        assert references[split]["action_accuracy"]["chance"] == pytest.approx(max(constants).item(), abs=0.03)


def test_show_writes_and_draws(capsys, tmp_path):
    assert run(["show", "preference-grid", "--scale", "paper", "--index", "3", "--image", str(tmp_path / "a.svg")]) == 0
    text = capsys.readouterr().out
    batch = TASK.sample("ood", 3, batch_size=1)
    assert all(f"preference {module}" in text for module in batch.latents[0].tolist() if module >= 0)
    steps = [ACTIONS[action] for action in batch.targets[0].tolist() if action != ENDED]
    assert [line.split()[1] for line in text.split("the expert")[1].splitlines() if line.strip()] == steps
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count('class="step"') == sum(step != "nothing" for step in steps)
    assert all(f"kind {kind}<" in drawn for kind in batch.info["kinds"][0].tolist())


def test_probes_read_the_first_step():
    """The last one may be empty."""
    reading = TASK.reading()
    (batch,) = reading.batches("test", 50, "cpu")
    plain = TASK.sample("test", 0, batch_size=1_000, rows=range(50))
    assert torch.equal(batch.inputs[:, -1], plain.inputs[:, 0])
    assert torch.equal(reading.target(batch), plain.targets[:, 0])
    assert torch.equal(reading.label(batch), plain.info["strengths"])
    best = TASK.best_predictions(batch, split="test", metric="trajectory_accuracy")
    assert TASK.metrics(best, batch)["trajectory_accuracy"].numerator.all()
