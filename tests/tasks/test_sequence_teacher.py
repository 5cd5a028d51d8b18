"""Sequence teachers: the definitions, the splits, padding, scores, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.foundation.errors import InputError
from recombine.tasks.sequences.functions import apply_layers, draw_weights, represent
from recombine.tasks.sequences.teacher import SequenceTeacher

CLASSES = ("deep_set", "attention", "ssm", "rnn", "product")
SMALL: dict[str, Any] = {"token_dim": 3, "teacher_dim": 4, "target_dim": 2, "longest": 14}
TASK = SequenceTeacher(**SMALL)


def test_lengths_of_the_splits():
    task = SequenceTeacher()
    assert [len(composition) for composition in task.split.train] == list(range(2, 11))
    assert [len(composition) for composition in task.split.ood] == list(range(11, 101))
    certificate = task.split.certificate
    assert (certificate.min_coverage, certificate.connected, certificate.overlap) == (9, True, 0)
    for split, longest in (("train", 10), ("test", 10), ("ood", 100)):
        batch = task.sample(split, 0, batch_size=500)
        assert batch.inputs.shape == (500, longest, 20)
        compositions = task.split.compositions(split)
        assert [len(compositions[i]) for i in batch.composition] == batch.info["length"].tolist()
        assert set(batch.info["length"].tolist()) <= set(range(*task.lengths(split))) | {longest}
        assert ((batch.latents == 0).sum(dim=1) == batch.info["length"]).all()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CLASSES), st.integers(0, 1000), st.sampled_from(["train", "test", "ood"]))
def test_batches_are_pure_and_made_of_rows(name, seed, split):
    task = SequenceTeacher(teacher=name, seed=seed, **SMALL)
    whole = task.sample(split, 3, batch_size=12)
    again = SequenceTeacher(teacher=name, seed=seed, **SMALL).sample(split, 3, batch_size=12)
    assert torch.equal(whole.inputs, again.inputs)
    parts = [task.sample(split, 3, batch_size=12, rows=range(r, r + 4)) for r in (0, 4, 8)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    torch.testing.assert_close(torch.cat([part.targets for part in parts]), whole.targets)
    assert not torch.equal(task.sample(split, 4, batch_size=12).inputs, whole.inputs)


def test_rows_of_the_corners_do_not_depend_on_each_other():
    task = SequenceTeacher(generalise_to="corners", max_length=3, min_length=3, token_dim=6, longest=3)
    whole = task.sample("train", 0, batch_size=64).inputs
    parts = [task.sample("train", 0, batch_size=64, rows=range(r, r + 1)).inputs for r in range(64)]
    assert torch.equal(torch.cat(parts), whole)


def test_padding_is_zero_and_never_counts():
    batch = TASK.sample("test", 0, batch_size=50)
    padding = torch.arange(10) >= batch.info["length"][:, None]
    for values in (batch.inputs, batch.targets, batch.info["hidden"]):
        assert (values[padding] == 0).all()
        assert (values[~padding] != 0).any(dim=-1).all()
    predictions = batch.targets + 0.1
    spoiled = torch.where(padding[..., None], torch.tensor(1e6), predictions)
    assert torch.equal(TASK.loss(spoiled, batch), TASK.loss(predictions, batch))
    assert TASK.loss(predictions, batch).item() == pytest.approx(0.01, rel=1e-4)
    for name, ratio in TASK.metrics(spoiled, batch).items():
        assert torch.equal(ratio.numerator, TASK.metrics(predictions, batch)[name].numerator)


def test_scores_by_hand():
    batch = TASK.sample("test", 0, batch_size=40)
    predictions = batch.targets * 0.9
    metrics = {
        name: (r.numerator.sum() / r.denominator.sum()).item() for name, r in TASK.metrics(predictions, batch).items()
    }
    error = constant = total = tokens = 0.0
    for row in range(40):
        length = batch.info["length"][row].item()
        last = batch.targets[row, length - 1]
        error += (0.1 * last).square().mean().item()
        constant += (last - TASK.position_means[length - 1]).square().mean().item()
        total += (0.1 * batch.targets[row, :length]).square().mean(dim=-1).sum().item()
        tokens += length
    assert metrics["loss"] == pytest.approx(error / 40, rel=1e-4)
    assert metrics["r2"] == pytest.approx(1 - error / constant, rel=1e-4)
    assert metrics["loss_all_tokens"] == pytest.approx(total / tokens, rel=1e-4)


@pytest.mark.parametrize("split", ["test", "ood"])
@pytest.mark.parametrize("name", CLASSES)
def test_between_the_best_constant_and_the_teacher(name, split):
    task = SequenceTeacher(teacher=name, **SMALL)
    batch = task.sample(split, 0, batch_size=4_000)
    best = task.best_predictions(batch, split=split, metric="loss")
    ceiling, chance = (task.metrics(predictions, batch) for predictions in (best, task.chance(batch)))
    assert ceiling["loss"].numerator.sum() == 0
    assert chance["r2"].numerator.sum() == 0
    length = task.lengths(split)[1]
    rows = batch.info["length"] == length
    spread = batch.targets[rows, length - 1].var(dim=0, correction=0).mean().item()
    assert chance["loss"].numerator[rows].mean().item() == pytest.approx(spread, rel=0.1)


def test_chain_of_thought_adds_the_error_of_hidden_states():
    task = SequenceTeacher(chain_of_thought=0.5, **SMALL)
    batch = task.sample("train", 0, batch_size=20)
    perfect = torch.cat([batch.targets, batch.info["hidden"]], dim=-1)
    assert task.loss(perfect, batch) == 0
    wrong = torch.cat([batch.targets, batch.info["hidden"] + 0.2], dim=-1)
    assert task.loss(wrong, batch).item() == pytest.approx(0.5 * 0.04, rel=1e-3)
    assert task.metrics(wrong, batch)["loss"].numerator.sum() == 0
    assert TASK.loss(wrong, batch) == 0
    with pytest.raises(InputError, match=r"because chain_of_thought is 0\.5"):
        task.loss(batch.targets, batch)


def test_corners_do_not_depend_on_the_default_type():
    task = SequenceTeacher(generalise_to="corners", max_length=3, token_dim=6)
    expected = task.sample("ood", 0, batch_size=4)
    try:
        torch.set_default_dtype(torch.float64)
        found = replace(task).sample("ood", 0, batch_size=4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.inputs.dtype == torch.float32
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)


def test_corners():
    task = SequenceTeacher(generalise_to="corners", max_length=10)
    assert len(task.split.ood) == 64
    assert task.split.certificate.min_coverage == 1
    trained = task.sample("train", 0, batch_size=2_000)
    sums = trained.inputs.sum(dim=1)
    assert ((sums[:, :10] >= 2.5) & (sums[:, :10] <= 7.5)).all()
    assert (sums[:, 10:] < 2.5).any()
    held_out = task.sample("ood", 0, batch_size=500)
    low, high = (held_out.inputs <= 0.25).all(dim=1), (held_out.inputs >= 0.75).all(dim=1)
    assert (low ^ high).all()
    assert torch.equal(held_out.latents % 2, high.long())
    assert torch.equal(held_out.latents // 2, torch.arange(20).expand(500, -1))


def test_diversity():
    narrow = SequenceTeacher(support=0.2, **SMALL)
    real = narrow.sample("train", 0, batch_size=200).inputs
    real = real[real > 0]
    assert 0.4 <= real.min() < 0.42
    assert 0.58 < real.max() <= 0.6
    assert torch.equal(narrow.sample("ood", 0).inputs, TASK.sample("ood", 0).inputs)
    pool = SequenceTeacher(num_sequences=5, **SMALL)
    rows = torch.cat([pool.sample("train", i, batch_size=50).inputs.flatten(1) for i in range(3)])
    assert len(rows.unique(dim=0)) == 5
    assert len(pool.sample("test", 0, batch_size=50).inputs.flatten(1).unique(dim=0)) == 50


def test_one_length_for_all_rows():
    batch = TASK.sample_length("ood", 0, 13, batch_size=5)
    assert batch.inputs.shape == (5, 13, 3)
    assert [len(TASK.split.ood[i]) for i in batch.composition] == [13] * 5
    with pytest.raises(InputError, match="length is 0: expected 11 to 14, the lengths of 'ood'"):
        TASK.sample_length("ood", 0, 0)
    with pytest.raises(InputError, match="length is 15: expected 11 to 14"):
        TASK.sample_length("ood", 0, 15)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"teacher": "gru"}, "unknown teacher 'gru': expected one of deep_set, attention, ssm, rnn, product"),
        ({"teacher_attention": "cosine"}, "unknown teacher_attention 'cosine'"),
        ({"teacher_readout": "deep"}, "unknown teacher_readout 'deep': expected one of linear, mlp"),
        ({"generalise_to": "colours"}, "unknown generalise_to 'colours': expected one of lengths, corners"),
        ({"min_length": 0}, "min_length is 0: expected a whole number of at least 1"),
        ({"longest": 0}, "longest is 0"),
        ({"min_length": 11}, "min_length is 11: expected at most max_length = 10"),
        ({"longest": 10}, "longest is 10: expected more than max_length = 10"),
        ({"teacher_dim": 0}, "teacher_dim is 0"),
        ({"num_sequences": 0}, "num_sequences is 0"),
        ({"support": 0.0}, "support is 0.0: expected a width above 0"),
        ({"chain_of_thought": -1.0}, "chain_of_thought is -1.0: expected a finite weight of at least 0"),
        ({"chain_of_thought": math.inf}, "chain_of_thought is inf: expected a finite number"),
    ],
)
def test_bad_settings(wrong, message, unchecked):
    with pytest.raises(InputError, match=message):
        SequenceTeacher(**wrong)


def test_predictions_of_another_shape():
    batch = TASK.sample("test", 0, batch_size=7)
    with pytest.raises(InputError, match=r"predictions have shape \(7, 2\): expected \(7, 10, 2\), or \(7, 10, 6\)"):
        TASK.loss(torch.zeros(7, 2), batch)


def test_words():
    batch = TASK.sample("ood", 0, batch_size=1)
    text = TASK.render(batch, 0)
    length = batch.info["length"].item()
    assert text.startswith(f"{length} tokens, labelled by a teacher of class deep_set")
    assert len(text.splitlines()) == 14  # the first and the last ones
    corners = SequenceTeacher(generalise_to="corners", token_dim=3, max_length=3)
    assert corners.describe((0, 3, 4)) == "features −+−"
    assert corners.describe(tuple(range(6))) == "every feature low and high, in turn"
    hidden = represent(
        "rnn", draw_weights("rnn", "linear", token_dim=3, hidden_dim=4, target_dim=2, seed=0), batch.inputs
    )
    assert apply_layers(TASK.weights, "readout", hidden).shape == (1, 14, 2)


def test_the_table_finds_outputs_that_stand_still():
    """A teacher of seed 2 whose output 16 hardly moves in training and does later; the numbers, by hand."""
    task = SequenceTeacher(teacher="ssm", seed=2)
    (table,) = task.tables(500)
    assert len(table.rows) == 5
    number, trained, held_out = table.rows[0]
    assert number == 16
    for split, deviation in (("test", trained), ("ood", held_out)):
        batch = task.sample(split, 0, batch_size=500)
        outputs = [row[:length, 16] for row, length in zip(batch.targets, batch.info["length"], strict=True)]
        assert deviation == pytest.approx(torch.cat(outputs).std().item(), rel=1e-4)
    assert trained < 0.1 * held_out
    losses: list[Any] = [row[1] for row in table.rows]
    assert losses == sorted(losses)


def test_a_long_sequence_is_cut_in_the_middle():
    task = SequenceTeacher()
    lines = task.render(task.sample("ood", 0, batch_size=1), 0).splitlines()
    assert len(lines) == 1 + 10 + 1 + 2
    assert "…" in lines[11]
    short = task.render(task.sample_length("test", 0, 4, batch_size=1), 0).splitlines()
    assert len(short) == 1 + 4


@pytest.mark.parametrize("shape", [(2, 0, 20), (2, 3, 19), (3, 20)])
def test_tokens_of_another_shape_have_no_label(shape, unchecked):
    with pytest.raises(InputError, match=r"expected \(rows, tokens, 20\)"):
        SequenceTeacher(teacher="rnn").label(torch.zeros(shape))
