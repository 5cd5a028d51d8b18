"""The preference grid: an expert that an independent solver confirms, observations, splits, scores, pictures."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from recombine.cli.main import run
from recombine.foundation.errors import InputError
from recombine.models.base import build_model, models_by_kind
from recombine.tasks.grids.imitation import ENDED
from recombine.tasks.grids.preference import ACTIONS, LAYOUT, PreferenceGrid
from recombine.training.config import default_run
from recombine.training.score import score_references

TASK = PreferenceGrid()
PUBLISHED = PreferenceGrid(expert="published")
MAP = LAYOUT.split()


@pytest.mark.parametrize("task", [TASK, PUBLISHED, PreferenceGrid(encoding="active_tokens", num_features=3)])
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


def test_rows_are_independent_of_the_batch_they_are_made_in():
    whole = TASK.sample("ood", 5, batch_size=64)
    part = TASK.sample("ood", 5, batch_size=64, rows=range(17, 40))
    assert torch.equal(part.inputs, whole.inputs[17:40])
    assert torch.equal(part.targets, whole.targets[17:40])
    for name, column in part.info.items():
        assert torch.equal(column, whole.info[name][17:40]), name


def test_no_two_splits_share_episodes():
    maps = {}
    for split in TASK.splits:
        batch = TASK.sample(split, 0, batch_size=500)
        kinds, objects = batch.info["kinds"].tolist(), batch.info["objects"].tolist()
        maps[split] = {(*a, *b) for a, b in zip(kinds, objects, strict=True)}
    assert not maps["train"] & maps["test"]
    assert not maps["train"] & maps["ood"]


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


def test_chance_is_the_best_constant_and_the_expert_the_ceiling():
    references = score_references(TASK, num_instances=2_000)
    batch = TASK.sample("test", 0, batch_size=2_000)
    constants = [batch.info["optimal"][batch.targets != ENDED][:, action].double().mean() for action in range(5)]
    assert TASK.best_constant == int(torch.stack(constants).argmax())
    for split in ("test", "ood"):
        assert all(metric["ceiling"] == 1 for metric in references[split].values())
        assert references[split]["action_accuracy"]["chance"] == pytest.approx(max(constants).item(), abs=0.03)


@pytest.mark.parametrize(
    "encoding", ["identity", "orthogonal", "tokens", "active_tokens", "invertible", "interval_shuffle"]
)
def test_encodings_tell_tasks_apart(encoding):
    task = PreferenceGrid(encoding=encoding)
    plain, coded = (each.sample("train", 0, batch_size=200) for each in (TASK, task))
    assert torch.equal(plain.targets, coded.targets)
    assert torch.equal(plain.inputs[..., 16:], coded.inputs[..., task.encoding_dim :])
    codes = coded.inputs[:, 0, : task.encoding_dim]
    strengths = plain.info["strengths"]
    apart, same = ((x[:, None] - x).abs().amax(dim=-1) for x in (codes, strengths))
    assert torch.equal(apart < 1e-3, same == 0)


@pytest.mark.parametrize("model", ["mlp", "task_transformer", "hypernetwork"])
def test_every_model_acts(model):
    config = default_run("preference_grid", "tiny", model)
    batch = config.task.sample("train", 0, batch_size=3)
    predictions = build_model(models_by_kind()[model](), config.task, seed=0)(batch.inputs)
    assert config.task.loss(predictions, batch).isfinite()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_active": 17}, "num_active is 17 of 16 modules"),
        ({"num_active": 1}, "num_active is 1 of 16 modules"),
        ({"num_objects": 11}, "num_objects is 11: expected at most 10"),
        ({"num_features": 0}, "num_features is 0"),
        ({"horizon": 0}, "horizon is 0"),
        ({"discount": 1.0}, "discount is 1.0: expected a number strictly between 0 and 1"),
        ({"expert": "greedy"}, "unknown expert 'greedy': expected one of remaining_steps, published"),
        ({"latents": "binary"}, "unknown latents 'binary'"),
        ({"encoding": "few_shot"}, "unknown encoding 'few_shot': expected one of identity"),
        ({"encoding": "invertible", "num_modules": 7}, "expected an even number"),
        ({"encoding": "tokens", "latents": "continuous"}, "expected discrete or k_hot"),
        ({"support": "none"}, "unknown support 'none'"),
        ({"held_out": 0.999}, "held-out fraction is 0.999"),
        ({"num_modules": 40, "num_active": 7}, "make 760,098 compositions or more: expected at most 200,000"),
    ],
)
def test_bad_settings(settings, message, unchecked):
    with pytest.raises(InputError, match=message):
        replace(TASK, **settings)


def test_bad_predictions(unchecked):
    batch = TASK.sample("test", 0, batch_size=2)
    with pytest.raises(InputError, match=r"shape \(2, 8, 4\): expected \(batch, 8 steps, 5 actions\)"):
        TASK.loss(torch.zeros(2, 8, 4), batch)


def test_show_writes_and_draws(capsys, tmp_path):
    assert run(["show", "preference-grid", "--index", "3", "--image", str(tmp_path / "a.svg")]) == 0
    text = capsys.readouterr().out
    batch = TASK.sample("ood", 3, batch_size=1)
    assert all(f"preference {module}" in text for module in batch.latents[0].tolist() if module >= 0)
    steps = [ACTIONS[action] for action in batch.targets[0].tolist() if action != ENDED]
    assert [line.split()[1] for line in text.split("the expert")[1].splitlines() if line.strip()] == steps
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count('class="step"') == sum(step != "nothing" for step in steps)
    assert all(f"kind {kind}<" in drawn for kind in batch.info["kinds"][0].tolist())


def test_kinds_beyond_the_shapes_have_dots():
    task = PreferenceGrid(num_features=40, num_objects=8)
    batches = [task.sample("ood", index, batch_size=1) for index in range(5)]
    assert any('class="dot"' in task.picture(batch, 0) for batch in batches)


def test_training_from_the_command_line_learns(tmp_path, capsys):
    flags = ["--scale", "tiny", "--steps", "150", "--evaluation-instances", "1000", "--out", str(tmp_path), "--json"]
    assert run(["train", "preference-grid", *flags]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    for split in ("test", "ood"):
        accuracy = scores[split]["action_accuracy"]
        assert accuracy["value"] > accuracy["chance"] + 0.15
        assert accuracy["ceiling"] == 1


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
