"""Linear identification: what it finds in students that are the teacher up to a known map, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.inside.collect import collect_activations
from recombine.models.base import build_model
from recombine.models.sequence import DeepSetConfig, RecurrentConfig, SequenceModel, StateSpaceConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run
from recombine_papers.length.identification import identify, identify_run

SIZES: dict[str, Any] = {"token_dim": 3, "teacher_dim": 4, "target_dim": 2, "longest": 30}


def student_of(config, task, change=lambda weights: None) -> SequenceModel:
    """A student with the teacher's weights, changed."""
    model = build_model(config, task, seed=0)
    assert isinstance(model, SequenceModel)
    weights = {name: value.clone() for name, value in task.weights.items()}
    change(weights)
    model.load_state_dict(weights)
    return model


def test_a_change_of_basis_is_found_at_every_length():
    task = SequenceTeacher(teacher="ssm", **SIZES)
    basis = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(4)

    def change(weights):
        weights["recurrence"] = basis @ weights["recurrence"] @ basis.inverse()
        weights["input"] = basis @ weights["input"]
        weights["readout.0.weight"] = weights["readout.0.weight"] @ basis.inverse()

    found = identify(student_of(StateSpaceConfig(hidden_dim=4), task, change), task, num_sequences=200)
    assert len(found.r2["transfer"]) == 30
    assert min(found.r2["transfer"]) > 0.9999
    assert max(found.loss) < 1e-7
    assert min(found.constant_loss) > 1e-4


def test_numbers_are_of_fresh_sequences():
    """With fewer sequences than units a map fits anything, and explains nothing of what it was not fitted on."""
    task = SequenceTeacher(teacher="rnn", longest=11)
    model = build_model(RecurrentConfig(hidden_dim=60), task, seed=1)
    few, many = (identify(model, task, num_sequences=number).r2["transfer"][-1] for number in (3, 1_000))
    assert few < 0.7
    assert many > 0.9


def test_by_position_is_by_length():
    task = SequenceTeacher(teacher="rnn", **SIZES)
    model = build_model(RecurrentConfig(hidden_dim=4), task, seed=1)
    found = identify(model, task, num_sequences=1_000)
    batch = task.sample_length("ood", 0, 20, batch_size=1_000)
    with torch.no_grad():
        error = task.metrics(model(batch.inputs), batch)["loss"]
    assert error.numerator.mean().item() == pytest.approx(found.loss[19], rel=0.1)


def test_a_run_keeps_what_was_found(tmp_path):
    task = SequenceTeacher(teacher="rnn", **SIZES)
    config = RunConfig(task=task, model=RecurrentConfig(hidden_dim=4), training=TrainingConfig(steps=20, batch_size=16))
    run = train_run(config, out=tmp_path, device="cpu", evaluation_instances=100)
    found = identify_run(run.path, num_sequences=50, device="cpu")
    assert found == run.read_json("identification.json")
    untrained = build_model(config.model, task, seed=task.seed)
    assert found["untrained"]["loss"] == pytest.approx(identify(untrained, task, num_sequences=50).loss)
    assert found["trained"]["loss"] != found["untrained"]["loss"]
    assert identify_run(run.path, num_sequences=50, device="cpu") == found
    assert identify_run(run.path, num_sequences=60, device="cpu") != found


def test_a_run_without_a_teacher(tmp_path):
    training = TrainingConfig(steps=10, batch_size=4)
    config = RunConfig(task=FuzzyLogic(num_examples=4), model=RecurrentConfig(), training=training)
    run = train_run(config, out=tmp_path, device="cpu", evaluation_instances=100)
    with pytest.raises(
        InputError, match="has no teacher to compare with: expected a run of a task such as sequence-teacher"
    ):
        identify_run(run.path)


def test_the_probe_reads_the_same_hidden_states():
    """`recombine probe` on any run of the family is linear identification at the longest sequences of each split."""
    task = SequenceTeacher(teacher="ssm", **SIZES)
    student = student_of(StateSpaceConfig(hidden_dim=4), task)
    seen = collect_activations(student, task.reading(), num_instances=300)
    assert seen.modules == ("unit 0", "unit 1", "unit 2", "unit 3")
    assert list(seen.by_site) == ["hidden"]
    np.testing.assert_allclose(seen.by_site["hidden"], seen.labels, atol=1e-4)
    short, long = (task.sample_length(split, 0, n, batch_size=1_000) for split, n in (("test", 10), ("ood", 30)))
    np.testing.assert_allclose(seen.labels[:300], short.info["hidden"][:300, -1], atol=1e-5)
    np.testing.assert_allclose(seen.labels[300:], long.info["hidden"][:300, -1], atol=1e-5)


def test_the_constant_knows_where_tokens_come_from():
    """A student trained on narrow tokens is held against the constant of the tokens that it is scored on."""
    wide, narrow = SequenceTeacher(longest=20), SequenceTeacher(longest=20, support=0.02)
    model = DeepSetConfig().build(wide)
    expected, found = (identify(model, task, num_sequences=600).constant_loss for task in (wide, narrow))
    assert found == pytest.approx(expected, rel=0.15)
