"""Scores of any predictor on any task: per split, between chance and ceiling, with honest intervals.

Instances of one composition are not independent, so the 95 % interval comes from a bootstrap over *compositions*: whole
compositions are drawn again with replacement, 2,000 times, and the metric is recomputed from their sums. Chance and
ceiling are the scores of the task's best constant and of its exact oracle on the very same instances. Two models are
compared by their *paired* difference, which can be clear even where their intervals overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import InputError, check_choice, check_positive
from recombine.tasks.base import Batch, Ratio, SplitName, Task
from recombine.tasks.stream import Stream

NUM_RESAMPLES = 2_000
BATCH_SIZE = 1_000  # part of the definition of the evaluation streams

METRIC_TITLES = {
    "r2": "R²",
    "r2_pooled": "R² pooled",
    "accuracy": "accuracy",
    "feature_accuracy": "feature accuracy",
    "loss": "squared error",
    "loss_all_tokens": "squared error, all tokens",
    "action_accuracy": "action accuracy",
    "trajectory_accuracy": "trajectory accuracy",
}

Predictor = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric on a split; `low` and `high` bound its 95 % interval."""

    value: float
    low: float
    high: float
    chance: float | None = None
    ceiling: float | None = None
    sums: tuple[tuple[float, ...], ...] = field(default=(), repr=False)  # numerators, denominators by composition

    def as_dict(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in ("value", "low", "high", "chance", "ceiling")}


Scores = dict[SplitName, dict[str, Score]]  # split -> metric -> score


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much one predictor scores above another on the same instances, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def compare(sums: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Difference:
    """The paired difference: both predictors on the same redrawn compositions, so what is hard for both cancels."""
    mine, theirs = (CompositionSums.from_lists(each) for each in (sums, other))
    if mine.totals["_"].shape != theirs.totals["_"].shape or not torch.equal(
        mine.totals["_"][1], theirs.totals["_"][1]
    ):
        raise InputError("the two scores are not of the same instances: expected the same task, split and number")
    low, high = _interval(mine.resample("_") - theirs.resample("_"))
    return Difference(value=mine.value("_") - theirs.value("_"), low=low, high=high)


def scores_as_dict(scores: Scores) -> dict[str, dict[str, dict[str, float | None]]]:
    return {split: {name: each.as_dict() for name, each in metrics.items()} for split, metrics in scores.items()}


def score(
    predict: Predictor,
    task: Task,
    *,
    splits: Iterable[SplitName] | None = None,
    num_instances: int | None = None,
    references: bool = True,
    device: torch.device | str = "cpu",
) -> Scores:
    """Score a predictor, by default on every split but `train`. `references=False` skips chance and ceiling."""
    num_instances = task.evaluation_instances if num_instances is None else num_instances
    check_positive(num_instances=num_instances)
    splits = evaluation_splits(task) if splits is None else tuple(splits)
    for split in splits:
        check_choice("split", split, task.splits)
    return {split: _score_split(predict, task, split, num_instances, references, device) for split in splits}


def score_references(task: Task, *, num_instances: int) -> dict[str, dict[str, dict[str, float]]]:
    """Chance and ceiling of each split and metric, without a model."""
    references: dict[str, dict[str, dict[str, float]]] = {}
    for split in evaluation_splits(task):
        sums = {name: CompositionSums(len(task.split.compositions(split))) for name in ("chance", "ceiling")}
        for batch in evaluation_batches(task, split, num_instances, "cpu"):
            sums["chance"].add(task.metrics(task.chance(batch), batch), batch)
            sums["ceiling"].add(task.metrics(task.oracle(batch), batch), batch)
        references[split] = {
            metric: {name: each.value(metric) for name, each in sums.items()} for metric in sums["chance"].totals
        }
    return references


def score_baselines(task: Task, *, num_instances: int | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """The task's simple strategies: baseline -> split -> metric -> value."""
    num_instances = task.evaluation_instances if num_instances is None else num_instances
    values: dict[str, dict[str, dict[str, float]]] = {}
    for split in evaluation_splits(task):
        sums: dict[str, CompositionSums] = {}
        for batch in evaluation_batches(task, split, num_instances, "cpu"):
            for name, predictions in task.baselines(batch).items():
                total = sums.setdefault(name, CompositionSums(len(task.split.compositions(split))))
                total.add(task.metrics(predictions, batch), batch)
        for name, total in sums.items():
            values.setdefault(name, {})[split] = {metric: total.value(metric) for metric in total.totals}
    return values


def evaluation_splits(task: Task) -> tuple[SplitName, ...]:
    """Every split with compositions, but `train`: `test` has the same compositions and fresh instances."""
    return tuple(split for split in task.splits if split != "train" and task.split.compositions(split))


def _score_split(
    predict: Predictor, task: Task, split: SplitName, num_instances: int, references: bool, device: torch.device | str
) -> dict[str, Score]:
    num_compositions = len(task.split.compositions(split))
    sums = {name: CompositionSums(num_compositions) for name in ("model", "chance", "ceiling")}
    training = predict.training if isinstance(predict, nn.Module) else None
    if isinstance(predict, nn.Module):
        predict.eval()
    try:
        with torch.inference_mode():
            for batch in evaluation_batches(task, split, num_instances, device):
                sums["model"].add(task.metrics(_predict(predict, batch), batch), batch)
                if references:
                    sums["chance"].add(task.metrics(task.chance(batch), batch), batch)
                    sums["ceiling"].add(task.metrics(task.oracle(batch), batch), batch)
    finally:
        if isinstance(predict, nn.Module):
            predict.train(bool(training))
    scores = {}
    for metric in sums["model"].totals:
        low, high = sums["model"].interval(metric)
        scores[metric] = Score(
            value=sums["model"].value(metric),
            low=low,
            high=high,
            chance=sums["chance"].value(metric) if references else None,
            ceiling=sums["ceiling"].value(metric) if references else None,
            sums=tuple(map(tuple, sums["model"].totals[metric].tolist())),
        )
    return scores


def evaluation_batches(task: Task, split: SplitName, num_instances: int, device: torch.device | str) -> Iterable[Batch]:
    """The first `num_instances` rows of a split."""
    for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
        rows = range(min(BATCH_SIZE, num_instances - first))
        yield task.sample(split, index, batch_size=BATCH_SIZE, rows=rows, device=device)


def _predict(predict: Predictor, batch: Batch) -> Tensor:
    predictions = predict(batch.inputs)
    if not isinstance(predictions, Tensor) or predictions.shape[:1] != batch.targets.shape[:1]:
        got = tuple(predictions.shape) if isinstance(predictions, Tensor) else type(predictions).__name__
        raise InputError(f"the model returned {got}: expected a tensor with {len(batch)} rows, one for each input")
    return predictions


class CompositionSums:
    """Sums of each metric's numerator and denominator, one for every composition."""

    def __init__(self, num_compositions: int) -> None:
        self.num_compositions = num_compositions
        self.totals: dict[str, Tensor] = {}

    def add(self, metrics: dict[str, Ratio], batch: Batch) -> None:
        for name, ratio in metrics.items():
            total = self.totals.setdefault(name, torch.zeros(2, self.num_compositions, dtype=torch.float64))
            rows = torch.stack([ratio.numerator, ratio.denominator]).to("cpu", torch.float64)
            total.index_add_(1, batch.composition.to("cpu"), rows)

    def value(self, name: str) -> float:
        numerator, denominator = self.totals[name].sum(dim=1).tolist()
        return numerator / denominator

    @classmethod
    def from_lists(cls, totals: Sequence[Sequence[float]]) -> CompositionSums:
        """One metric, as `Score.sums` keeps it."""
        sums = cls(len(totals[0]))
        sums.totals["_"] = torch.tensor(totals, dtype=torch.float64)
        return sums

    def resample(self, name: str) -> Float[Tensor, " resamples"]:
        """The metric over redrawn compositions (of those that occurred at all)."""
        totals = self.totals[name]
        totals = totals[:, totals[1] != 0]
        drawn = Stream("bootstrap", rows=range(NUM_RESAMPLES)).integers(totals.shape[1], totals.shape[1])
        numerator, denominator = totals[:, drawn].sum(dim=-1)
        return numerator / denominator

    def interval(self, name: str) -> tuple[float, float]:
        """The middle 95 % of the metric over redrawn compositions."""
        return _interval(self.resample(name))


def _interval(values: Float[Tensor, " resamples"]) -> tuple[float, float]:
    low, high = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high
