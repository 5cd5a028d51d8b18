"""Scores: right values, intervals that cover, references beside them."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from recombine.foundation.errors import InputError
from recombine.tasks.base import Ratio
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.sampling import Batch
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.tasks.sraven.task import SRaven
from recombine.training.intervals import compare, compare_rows
from recombine.training.score import (
    CompositionSums,
    describe_metrics,
    evaluation_splits,
    score,
    score_references,
)
from spies import record_calls

TASK = FuzzyLogic(num_examples=8)


def test_the_best_constant_scores_chance():
    scores = score(lambda inputs: torch.full((len(inputs),), TASK.mean_target), TASK, num_instances=1_500)
    for metrics in scores.values():
        for each in metrics.values():
            assert each.value == each.chance
            assert each.low <= each.value <= each.high
            assert each.chance < each.ceiling


def best_on_ood(inputs):
    batch = Batch(inputs, inputs[:, -1, -1], torch.zeros(len(inputs), 2, dtype=torch.int64))
    return TASK.best_predictions(batch, split="ood", metric="r2")


def test_the_best_predictions_score_the_ceiling():
    found = score(best_on_ood, TASK, splits=("ood",), num_instances=500)["ood"]["r2"]
    assert found.value == found.ceiling > found.agnostic > found.chance


def test_values_agree_with_the_definition_over_several_batches():
    def predict(inputs):
        return inputs[:, -2, -1]

    value = score(predict, TASK, splits=("ood",), num_instances=1_300)["ood"]["r2"].value
    rows = [TASK.sample("ood", 0, batch_size=1_000), TASK.sample("ood", 1, batch_size=1_000, rows=range(300))]
    parts = torch.cat([TASK.metrics(predict(batch.inputs), batch)["r2"].numerator for batch in rows])
    assert value == pytest.approx(parts.mean().item())


def test_splits_and_references():
    assert evaluation_splits(TASK) == ("test", "ood", "unknown")
    scores = score(lambda x: x[:, 0, 0], TASK, splits=("ood",), num_instances=100, references=False)
    assert scores["ood"]["r2"].chance is scores["ood"]["r2"].agnostic is None
    references = score_references(TASK, num_instances=100)
    full = score(lambda x: x[:, 0, 0], TASK, num_instances=100)
    for metric, values in references["ood"].items():
        assert {name: getattr(full["ood"][metric], name) for name in ("chance", "ceiling", "agnostic")} == values


def test_every_batch_is_sampled_once(monkeypatch):
    """Model, references and baselines share it."""
    task = SRaven(num_features=2, num_values=5)
    sampled: list[Any] = []
    plain = SRaven.sample
    monkeypatch.setattr(SRaven, "sample", record_calls(plain, sampled))
    evaluation = score(lambda x: x[:, -4:-2], task, num_instances=1_200)
    assert [call[1:3] for call in sampled] == [("test", 0), ("test", 1), ("ood", 0), ("ood", 1)]
    rows = [plain(task, "ood", index, batch_size=1_000, rows=range(n)) for index, n in ((0, 1_000), (1, 200))]
    right = [task.metrics(task.baselines(batch)["panel to the left"], batch)["accuracy"].numerator for batch in rows]
    assert evaluation.baselines["panel to the left"]["ood"]["accuracy"] == torch.cat(right).mean()
    assert evaluation.baselines.keys() == {"panel to the left", "most frequent answer"}
    assert evaluation == score(lambda x: x[:, -4:-2], task, num_instances=1_200)


def test_metrics_are_described_by_the_task():
    task = SequenceTeacher()
    described = describe_metrics(task, [{"r2": 0, "loss": 0}, {"loss_all_tokens": 0, "own_metric": 0}])
    assert list(described) == ["r2", "loss", "loss_all_tokens", "own_metric"]
    assert described["loss_all_tokens"] == {"title": "squared error, all tokens", "higher_is_better": False}
    assert described["own_metric"] == {"title": "own metric", "higher_is_better": True}


def test_a_module_is_scored_in_eval_mode_and_left_as_it_was():
    class Model(nn.Module):
        def forward(self, x):
            assert not self.training
            assert not torch.is_grad_enabled()
            return x[:, 0, 0]

    model = Model()
    score(model, TASK, splits=("test",), num_instances=10)
    assert model.training
    score(model.eval(), TASK, splits=("test",), num_instances=10)
    assert not model.training


def test_the_interval_covers_the_truth_at_its_rate():
    """Compositions of different difficulty: 95 % intervals over compositions hold the mean in about 95 % of worlds."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        difficulty = torch.randn(40, generator=generator, dtype=torch.float64)
        sums = CompositionSums(40)
        number = torch.arange(40).repeat_interleave(25)
        noise = 0.1 * torch.randn(1_000, generator=generator, dtype=torch.float64)
        batch = Batch(noise, noise, number[:, None], {"composition": number})
        sums.add({"m": Ratio(difficulty[number] + noise, torch.ones_like(noise))}, batch)
        low, high = sums.interval("m")
        covered += low <= 0 <= high
    assert 0.89 <= covered / 200 <= 0.99


def test_paired_differences_are_sharper_than_two_intervals():
    """A predictor that is a little better everywhere: intervals overlap, the difference is clear."""

    def noisy(size):
        return lambda inputs: best_on_ood(inputs) + size

    better, worse = (
        score(noisy(size), TASK, splits=("ood",), num_instances=2_000)["ood"]["r2"] for size in (0.1, 0.101)
    )
    assert better.low < worse.high
    difference = compare(better.sums, worse.sums)
    assert difference.value == pytest.approx(better.value - worse.value)
    assert 0 < difference.low < difference.value < difference.high
    assert difference.is_significant
    same = compare(better.sums, better.sums)
    assert (same.value, same.low, same.high, same.is_significant) == (0, 0, 0, False)


def test_rows_of_a_batch_are_compared_in_pairs():
    batch = TASK.sample("ood", 0, batch_size=600)
    mine, theirs = (TASK.metrics(batch.targets + size, batch)["r2_pooled"] for size in (0.1, 0.11))
    difference = compare_rows(mine, theirs, batch)
    sums = []
    for ratio in (mine, theirs):
        total = CompositionSums(46)
        total.add({"m": ratio}, batch)
        sums.append(total.totals["m"].tolist())
    assert difference == compare(*sums)
    assert difference.is_significant
    assert difference.value == pytest.approx(compare_rows(theirs, mine, batch).value * -1)
    with pytest.raises(InputError, match="not of the same instances"):
        compare_rows(mine, Ratio(theirs.numerator, 2 * theirs.denominator), batch)


def test_scores_of_other_instances_cannot_be_paired():
    few, many = (score(lambda x: x[:, 0, 0], TASK, splits=("ood",), num_instances=n)["ood"]["r2"] for n in (100, 200))
    with pytest.raises(InputError, match="not of the same instances"):
        compare(few.sums, many.sums)


def test_bad_requests(unchecked):
    with pytest.raises(InputError, match="unknown split 'oops'"):
        score(lambda x: x, TASK, splits=("oops",))
    with pytest.raises(InputError, match="num_instances is 0"):
        score(lambda x: x, TASK, num_instances=0)
    with pytest.raises(InputError, match=r"the model returned \(3,\): expected a tensor with 10 rows"):
        score(lambda x: torch.zeros(3), TASK, num_instances=10)
    with pytest.raises(
        InputError, match=r"the model returned a tuple of 2 \(Tensor, dict\): .* returns its predictions"
    ):
        score(cast(Any, lambda x: (x, {})), TASK, num_instances=10)
    with pytest.raises(InputError, match="the model returned dict: expected a tensor"):
        score(cast(Any, lambda x: {}), TASK, num_instances=10)
    with pytest.raises(InputError, match=r"the model returned torch.bool: expected floating-point"):
        score(lambda x: x[:, 0, 0] > 0, TASK, num_instances=10)


def test_predictions_that_are_no_numbers_are_refused(unchecked):
    with pytest.raises(InputError, match=r"400 of 400 predictions are not finite \(NaN\): expected numbers"):
        score(lambda x: x * float("nan"), TASK, num_instances=10)

    def overflow(inputs):
        return torch.where(torch.arange(len(inputs)) < 3, torch.inf, 0.0)

    with pytest.raises(InputError, match="r2 of 3 of 10 instances is not finite: expected finite predictions"):
        score(overflow, TASK, num_instances=10)
    task = SRaven(num_features=2, num_values=5)
    masked = score(lambda x: x[:, -4:-2].log(), task, num_instances=10)  # logits of minus infinity exclude an answer
    assert masked == score(lambda x: x[:, -4:-2], task, num_instances=10)
