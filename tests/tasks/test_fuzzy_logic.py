"""Fuzzy logic: the definition, the splits, the scores."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.foundation.errors import InputError
from recombine.tasks.fuzzy_logic import FuzzyLogic, evaluate_function, evaluate_terms

TASK = FuzzyLogic()


def naive_function(x: list[float], terms: list[int]) -> float:
    """The definition, one value at a time."""
    length = len(x)

    def literal(term: int, i: int) -> float:
        negated = (term >> (length - 1 - i)) & 1
        return 1 - x[i] if negated else x[i]

    return max(min(literal(term, i) for i in range(length)) for term in terms)


@settings(max_examples=30, deadline=None)
@given(num_variables=st.integers(3, 5), num_terms=st.integers(2, 3), seed=st.integers(0, 1000))
def test_batches_follow_the_definition(num_variables, num_terms, seed):
    task = FuzzyLogic(num_variables=num_variables, num_terms=num_terms, num_examples=4, held_out=0.3, seed=seed)
    for split in task.splits:
        if not task.split.compositions(split):
            continue
        batch = task.sample(split, 0, batch_size=3)
        for row in range(3):
            terms = batch.latents[row].tolist()
            assert tuple(terms) == task.split.compositions(split)[batch.composition[row]]
            for token in range(4):
                *x, y = batch.inputs[row, token].double().tolist()
                y = batch.targets[row].item() if token == 3 else y
                assert y == pytest.approx(naive_function(x, terms), abs=1e-7)
            assert batch.inputs[row, -1, -1] == 0


def test_all_terms_equal_chosen_terms():
    batch = TASK.sample("train", 0)
    x = batch.inputs[:, :, :-1]
    chosen = evaluate_terms(x).gather(-1, batch.latents[:, None].expand(-1, x.shape[1], -1)).amax(-1)
    assert torch.equal(evaluate_function(x, batch.latents), chosen)


def test_boolean_inputs_give_boolean_functions():
    x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    terms = evaluate_terms(x)
    assert torch.equal(terms.sum(dim=-1), torch.ones(16))  # each row of the truth table satisfies one conjunction
    assert torch.equal(terms.flip(0), torch.eye(16).flip(1).flip(0).flip(1).flip(0))


def test_sizes_and_splits():
    assert (TASK.input_dim, TASK.output_dim, TASK.sequence_length, TASK.num_read) == (5, 1, 32, 1)
    assert TASK.num_known_terms == 12
    split = TASK.split
    assert (len(split.train), len(split.ood), len(split.unknown)) == (20, 46, 6)
    assert all(set(composition) <= set(range(12, 16)) for composition in split.unknown)


@pytest.mark.parametrize("split", ["train", "test", "ood", "unknown"])
def test_a_batch_is_a_pure_function(split):
    first, again = TASK.sample(split, 5), FuzzyLogic().sample(split, 5)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    other = TASK.sample(split, 6)
    assert not torch.equal(first.inputs, other.inputs)


def test_no_instance_is_shared_between_splits():
    seen: dict[Any, Any] = {}
    for split in TASK.splits:
        for index in range(20):
            for row in TASK.sample(split, index).inputs[:, 0, :4].tolist():
                assert seen.setdefault(tuple(row), (split, index)) == (split, index)


def test_a_rank_makes_its_own_rows():
    whole = TASK.sample("train", 3, batch_size=64)
    parts = [TASK.sample("train", 3, batch_size=64, rows=range(r * 16, r * 16 + 16)) for r in range(4)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.latents for part in parts]), whole.latents)


def test_scores_by_hand():
    batch = TASK.sample("test", 0, batch_size=50)
    prediction = batch.targets + 0.1
    values = torch.cat([batch.inputs[:, :-1, -1], batch.targets[:, None]], dim=1).double()
    variance = ((values - values.mean(1, keepdim=True)) ** 2).mean(1)
    metrics = TASK.metrics(prediction, batch)
    published = metrics["r2"].numerator.sum() / metrics["r2"].denominator.sum()
    pooled = metrics["r2_pooled"].numerator.sum() / metrics["r2_pooled"].denominator.sum()
    assert published == pytest.approx((1 - 0.01 / variance).mean().item(), abs=1e-5)
    assert pooled == pytest.approx(1 - 50 * 0.01 / variance.sum().item(), abs=1e-5)
    assert TASK.loss(prediction, batch) == pytest.approx(0.01, abs=1e-6)


def test_the_best_constant_scores_about_zero():
    batch = TASK.sample("test", 0, batch_size=8_000)
    metrics = TASK.metrics(TASK.chance(batch), batch)
    assert abs(metrics["r2_pooled"].numerator.sum() / metrics["r2_pooled"].denominator.sum()) < 0.08
    best = batch.targets.var(correction=0)
    assert (TASK.chance(batch) - batch.targets).square().mean() < 1.02 * best


def test_predictions_may_have_any_reasonable_shape():
    batch = TASK.sample("test", 0, batch_size=7)
    flat = torch.arange(7.0)
    for prediction in (flat, flat[:, None], flat[:, None, None], flat[:, None, None].expand(7, 32, 1)):
        assert torch.equal(TASK.read(prediction), flat)
    with pytest.raises(InputError, match=r"predictions have shape \(7, 5\)"):
        TASK.loss(torch.zeros(7, 5), batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_variables": 0}, "num_variables is 0"),
        ({"num_terms": 13}, "num_terms is 13: expected at most 12"),
        ({"num_examples": 1}, "num_examples is 1: expected at least 2"),
        ({"held_out": 1.0}, "held-out fraction is 1.0"),
        ({"held_out": 0.95}, "expected at least 6"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        FuzzyLogic(**settings)


def test_unknown_and_empty_splits(unchecked):
    with pytest.raises(InputError, match="unknown split 'oops': expected one of train, test, ood, unknown"):
        TASK.sample("oops", 0)
    with pytest.raises(InputError, match="split 'unknown' of task 'fuzzy_logic' is empty: 2 variables have too few"):
        FuzzyLogic(num_variables=2, num_terms=2, held_out=0.34).sample("unknown", 0)


def test_a_ceiling_too_large_to_enumerate_says_so():
    task = FuzzyLogic(num_variables=6, num_terms=4, num_examples=4)
    with pytest.raises(InputError, match="would enumerate 635376 compositions"):
        task.best_predictions(task.sample("test", 0, batch_size=2), split="test", metric="r2")


def test_words():
    assert TASK.describe((0, 10)) == "(x1 ∧ x2 ∧ x3 ∧ x4) ∨ (¬x1 ∧ x2 ∧ ¬x3 ∧ x4)"
    text = TASK.render(TASK.sample("ood", 0, batch_size=1), 0)
    assert len(text.splitlines()) == 34
    assert "answer" in text
