"""Scores of the tasks with real-valued answers, by hand."""

import pytest
import torch

from recombine import FuzzyLogic, Hyperteacher, InContext, InputError

FUZZY = FuzzyLogic()
HYPERTEACHER = Hyperteacher(num_modules=6, num_active=2, x_dim=3, teacher_dim=5, y_dim=4, num_samples=4)
IN_CONTEXT = InContext(input_size=4, hidden_size=8, num_examples=12, num_queries=3)


@pytest.mark.parametrize(
    ("task", "list_values"),  # all values of a sequence, whose variance R² divides by
    [
        (FUZZY, lambda batch: torch.cat([batch.inputs[:, :-1, -1], batch.targets[:, None]], dim=1)),
        (HYPERTEACHER, lambda batch: batch.targets),
        (IN_CONTEXT, lambda batch: torch.cat([batch.inputs[:, :12, 4:], batch.targets], dim=1)),
    ],
)
def test_scores_by_hand(task, list_values):
    batch = task.sample("test", 0, batch_size=50)
    prediction, values = batch.targets + 0.1, list_values(batch).double()
    variance = ((values - values.mean(dim=1, keepdim=True)) ** 2).mean(dim=1).clamp_min(1e-12)
    found = {
        name: (ratio.numerator.sum() / ratio.denominator.sum()).item()
        for name, ratio in task.metrics(prediction, batch).items()
    }
    assert found["r2"] == pytest.approx((1 - 0.01 / variance).mean().item(), rel=1e-4)
    assert found["r2_pooled"] == pytest.approx(1 - 0.01 * variance.numel() / variance.sum().item(), rel=1e-4)
    assert task.loss(prediction, batch) == pytest.approx(0.01, abs=1e-6)


@pytest.mark.parametrize(
    ("task", "reshape", "wrong", "message"),  # what is accepted besides the shape of the targets, and what is not
    [
        (FUZZY, lambda y: y[:, None], (7, 5), r"\(7, 5\)"),
        (FUZZY, lambda y: torch.cat([y.new_zeros(7, 31), y[:, None]], dim=1)[..., None], (7, 5), r"\(7, 5\)"),
        (HYPERTEACHER, lambda y: y.flatten(1), (7, 4), r"\(7, 4\): expected \(7, 4, 4\)"),
        (
            IN_CONTEXT,
            lambda y: torch.cat([y.new_zeros(7, 12, 4), y], dim=1),
            (7, 2, 4),
            r"\(7, 2, 4\): expected \(rows, 3",
        ),
    ],
)
def test_predictions_may_have_any_reasonable_shape(task, reshape, wrong, message):
    batch = task.sample("test", 0, batch_size=7)
    prediction = batch.targets + 0.1
    assert task.loss(reshape(prediction), batch) == task.loss(prediction, batch)
    with pytest.raises(InputError, match=f"predictions have shape {message}"):
        task.loss(torch.zeros(wrong), batch)


@pytest.mark.parametrize("task", [FUZZY, HYPERTEACHER, IN_CONTEXT])
def test_chance_is_the_best_constant(task):
    batch = task.sample("train", 0, batch_size=4_000)
    best = batch.targets.reshape(-1, task.output_dim).var(dim=0, correction=0).mean()
    assert best <= task.loss(task.chance(batch), batch) < 1.02 * best
