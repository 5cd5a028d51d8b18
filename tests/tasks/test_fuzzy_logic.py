"""Fuzzy logic: the definition, the splits, the scores; and no predictor exceeds the ceiling."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recombine.compositions import Composition
from recombine.foundation.errors import InputError
from recombine.tasks.fuzzy_logic import FuzzyLogic, best_answers, evaluate_function, evaluate_terms
from recombine.training.score import score

TASK = FuzzyLogic()


def evaluate(x: np.ndarray, composition: Composition) -> np.ndarray:
    """The definition: the largest of the chosen conjunctions, x or 1 - x of each variable as the bits of a term say."""
    terms = []
    for term in composition:
        negated = f"{term:0{x.shape[-1]}b}"
        terms.append(np.min([1 - x[..., i] if bit == "1" else x[..., i] for i, bit in enumerate(negated)], axis=0))
    return np.max(terms, axis=0)


@settings(max_examples=30, deadline=None)
@given(num_variables=st.integers(3, 5), num_terms=st.integers(2, 3), seed=st.integers(0, 1000))
def test_batches_follow_the_definition(num_variables, num_terms, seed):
    task = FuzzyLogic(num_variables=num_variables, num_terms=num_terms, num_examples=4, held_out=0.3, seed=seed)
    for split in task.splits:
        if not task.split.compositions(split):
            continue
        batch = task.sample(split, 0, batch_size=3)
        for row in range(3):
            terms = tuple(batch.latents[row].tolist())
            assert terms == task.split.compositions(split)[batch.composition[row]]
            y = [*batch.inputs[row, :-1, -1].tolist(), batch.targets[row].item()]
            assert y == pytest.approx(evaluate(batch.inputs[row, :, :-1].double().numpy(), terms), abs=1e-7)
            assert batch.inputs[row, -1, -1] == 0
        x = batch.inputs[:, :, :-1]
        chosen = evaluate_terms(x).gather(-1, batch.latents[:, None].expand(-1, x.shape[1], -1)).amax(-1)
        assert torch.equal(evaluate_function(x, batch.latents), chosen)


def test_sizes_and_splits():
    assert (TASK.input_dim, TASK.output_dim, TASK.sequence_length, TASK.num_read) == (5, 1, 32, 1)
    assert TASK.num_known_terms == 12
    split = TASK.split
    assert (len(split.train), len(split.ood), len(split.unknown)) == (20, 46, 6)
    assert all(set(composition) <= set(range(12, 16)) for composition in split.unknown)


def test_requests_that_cannot_be_met():
    task = FuzzyLogic(num_variables=6, num_terms=4, num_examples=4)
    with pytest.raises(InputError, match="make 635,376 compositions: expected at most 200,000"):
        task.best_predictions(task.sample("test", 0, batch_size=2), split="test", metric="r2")
    batch = TASK.sample("ood", 0, batch_size=50)
    with pytest.raises(InputError, match="unknown metric 'accuracy': expected one of r2, r2_pooled"):
        TASK.best_predictions(batch, split="ood", metric="accuracy")
    with pytest.raises(
        InputError, match="sequences agree with no possible function: expected a batch of the same split"
    ):
        TASK.best_predictions(batch, split="unknown", metric="r2")
    with pytest.raises(InputError, match="split 'unknown' of task 'fuzzy_logic' is empty: 2 variables have too few"):
        FuzzyLogic(num_variables=2, num_terms=2, held_out=0.34).sample("unknown", 0)


def test_words():
    assert TASK.describe((0, 10)) == "(x1 ∧ x2 ∧ x3 ∧ x4) ∨ (¬x1 ∧ x2 ∧ ¬x3 ∧ x4)"
    text = TASK.render(TASK.sample("ood", 0, batch_size=1), 0)
    assert len(text.splitlines()) == 15
    assert text.endswith("]\n[ ] to be predicted")


# ---- the ceiling: explicit Bayes predictors, by brute force over all functions

ALL_PAIRS = tuple(itertools.combinations(range(16), 2))
METRICS = ("r2", "r2_pooled")


def list_answers(inputs: np.ndarray, prior: Sequence[Composition]) -> list[list[float]]:
    """For each sequence, the value at the query of every function of the prior that agrees with the examples."""
    values = np.stack([evaluate(inputs[..., :4], composition) for composition in prior], axis=1)
    agrees = (np.abs(values[:, :, :-1] - inputs[:, None, :-1, 4]) < 1e-6).all(axis=2)
    return [row[fits].tolist() for row, fits in zip(values[:, :, -1], agrees, strict=True)]


def weigh(context: np.ndarray, answers: list[float], metric: str) -> np.ndarray:
    """What an error costs under each answer: 1 over the variance that R² divides by, or 1 for the pooled one."""
    if metric == "r2_pooled":
        return np.ones(len(answers))
    return np.array([1 / np.append(context, answer).var() for answer in answers])


def bayes(prior: Sequence[Composition], metric: str) -> Callable[[Tensor], Tensor]:
    """The prediction with the smallest expected cost."""

    def predict(inputs: Tensor) -> Tensor:
        rows = inputs.double().numpy()
        predictions = []
        for row, answers in zip(rows, list_answers(rows, prior), strict=True):
            weights = weigh(row[:-1, 4], answers, metric)
            predictions.append((weights * answers).sum() / weights.sum())
        return torch.tensor(predictions)

    return predict


@pytest.mark.parametrize("num_examples", [2, 4, 8])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("split", ["test", "ood", "unknown", None])
def test_bayes_predictors_reach_the_ceiling_and_the_agnostic_optimum(num_examples, split, metric):
    """With the functions of the split as prior, or with all of them."""
    task = FuzzyLogic(num_examples=num_examples)
    predict = bayes(ALL_PAIRS if split is None else task.split.compositions(split), metric)
    found = score(predict, task, splits=(split or "test",), num_instances=800)[split or "test"][metric]
    expected = found.agnostic if split is None else found.ceiling
    assert found.value == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert split is not None or found.agnostic < found.ceiling


def test_many_functions_are_enumerated_in_parts():
    """C(16, 3) = 560 functions are more than are looked at at once."""
    task = FuzzyLogic(num_terms=3, num_examples=3)
    batch = task.sample("test", 0, batch_size=30)
    every_triple = tuple(itertools.combinations(range(16), 3))
    for metric, (prior, split) in itertools.product(METRICS, ((task.split.train, "test"), (every_triple, None))):
        expected = bayes(prior, metric)(batch.inputs)
        torch.testing.assert_close(task.best_predictions(batch, split=split, metric=metric), expected)


@pytest.mark.parametrize("decimals", [0, 2])
def test_best_answers_are_on_the_device_of_the_batch(decimals):
    task = FuzzyLogic(decimals=decimals, num_examples=8)
    inputs = task.sample("test", 0, batch_size=4).inputs.to("meta")
    possible = torch.ones(1, len(task.all_compositions), dtype=torch.bool)
    best = best_answers(inputs, task.all_compositions, possible, decimals)
    assert {answer.device.type for answer in best.values()} == {"meta"}


def test_rounded_answers_are_those_of_most_functions():
    """With one decimal and few examples, against counting the answers of all functions of the split."""
    task = FuzzyLogic(decimals=1, num_examples=3)
    batch = task.sample("test", 0, batch_size=100)
    rows = batch.inputs.double().numpy()
    best = task.best_predictions(batch, split="test", metric="accuracy").tolist()
    for prediction, answers in zip(best, list_answers(rows, task.split.train), strict=True):
        counts = Counter(round(answer, 1) for answer in answers)
        assert counts[round(prediction, 1)] == max(counts.values())
