"""Scores of any predictor on any task, per split, with 95 % intervals and reference scores.

Instances of one composition are not independent, so intervals are Student's over *compositions*, with clustered standard
errors: with N_c and D_c the sums of the metric's numerator and denominator over the instances of composition c of C,

    R = Σ N_c / Σ D_c        standard error² = C / (C - 1) · Σ d_c²,   d_c = (N_c - R D_c) / Σ D · (1 - 1 / C) / (1 - D_c / Σ D)

The last factor is the jackknife's: compositions with large denominators pull R towards themselves. The degrees of freedom
are those of (Σ D)² / Σ D_c² compositions of equal weight.

There are three reference scores, all measured on the same instances as the score:

- chance: the best predictor that ignores the input;
- ceiling: the best predictor that knows which compositions the split holds. No predictor can exceed it, except by the
  sampling error of finitely many instances;
- agnostic: the best predictor that does not know which compositions the split holds.

`Task.best_predictions` of each task says whether the last two are exact or bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.models.base import is_own
from recombine.tasks.base import Ratio, Reference, Task
from recombine.tasks.sampling import Batch, SplitName, evaluation_batches
from recombine.training.config import RunConfig, default_run
from recombine.training.schema import Json, MetricDict, Score, SplitDict

EVALUATION_VERSION = 3
"""Raise it when the same predictor on the same task gets different scores, intervals or reference scores than before: other
instances, another interval, another definition of chance or ceiling. Scores of other versions are measured again."""

CONFIDENCE = 0.95
LEARNED = 0.8  # of the way from chance to ceiling, on trained compositions

Predictor = Callable[[Tensor], Tensor]
ReferenceScores = dict[str, dict[str, dict[Reference, float]]]  # split -> metric -> reference -> value
BaselineScores = dict[str, dict[str, dict[str, float]]]  # baseline -> split -> metric -> value
Scores = dict[SplitName, dict[str, Score]]  # split -> metric -> score


class Evaluation(Scores):
    """The scores of a predictor, and in `baselines` those of the task's simple strategies on the same instances."""

    def __init__(self) -> None:
        super().__init__()
        self.baselines: BaselineScores = {}


def scores_as_dict(scores: Scores) -> dict[str, dict[str, Any]]:
    """The scores as `result.json` has them, without their sums."""
    names = [field.name for field in fields(Score) if field.name != "sums"]
    return {
        split: {metric: {name: getattr(score, name) for name in names} for metric, score in metrics.items()}
        for split, metrics in scores.items()
    }


def describe_metrics(task: Task, scores: Iterable[Mapping[str, object]]) -> dict[str, MetricDict]:
    """How to show each metric that occurs in `scores`, which has the metrics of each split."""
    names = dict.fromkeys(name for metrics in scores for name in metrics)
    infos = {name: task.metric(name) for name in names}
    return {name: {"title": info.title, "higher_is_better": info.higher_is_better} for name, info in infos.items()}


def describe_splits(task: Task) -> dict[str, SplitDict]:
    """What each split of a task is."""
    return {split: {"title": task.split_title(split), "meaning": task.split_meaning(split)} for split in task.splits}


def score(
    predict: Predictor,
    task: Task,
    *,
    splits: Iterable[SplitName] | None = None,
    num_instances: int | None = None,
    references: bool = True,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """Score a predictor, by default on every split but `train`; every batch is sampled once.

    `references=False` skips the reference scores and the task's baselines.
    """
    num_instances = task.evaluation_instances if num_instances is None else num_instances
    check_positive(num_instances=num_instances)
    splits = evaluation_splits(task) if splits is None else tuple(splits)
    for split in splits:
        check_choice("split", split, task.splits)
    evaluation = Evaluation()
    for split in splits:
        sums = _SplitSums(len(task.split.compositions(split)))
        with evaluating(predict) if isinstance(predict, nn.Module) else torch.inference_mode():
            for batch in evaluation_batches(task, split, num_instances, device):
                sums.model.add(_measure_model(predict, task, batch), batch)
                if references:
                    sums.add_references(task, split, batch)
                    sums.add_baselines(task, batch)
        evaluation[split] = {metric: sums.score(metric) for metric in sums.model.totals}
        for name, baseline in sums.baselines.items():
            values = {metric: baseline.value(metric) for metric in baseline.totals}
            evaluation.baselines.setdefault(name, {})[split] = values
    return evaluation


def score_references(task: Task, *, num_instances: int) -> ReferenceScores:
    """Chance, ceiling and agnostic optimum of each split and metric, without a model."""
    references: ReferenceScores = {}
    for split in evaluation_splits(task):
        sums = _SplitSums(len(task.split.compositions(split)))
        for batch in evaluation_batches(task, split, num_instances, "cpu"):
            sums.add_references(task, split, batch)
        chance = sums.references["chance"]
        references[split] = {
            metric: {name: each.value(metric) for name, each in sums.references.items()} for metric in chance.totals
        }
    return references


def evaluation_splits(task: Task) -> tuple[SplitName, ...]:
    """Every split with compositions except `train`; `test` has the same compositions with new instances."""
    return tuple(split for split in task.splits if split != "train" and task.split.compositions(split))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the previous mode is restored at the end."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def check_predictions(predictions: object, *, num_rows: int) -> Tensor:
    """What a model returned, if it is a floating-point tensor with a row per input."""
    expected = f"expected a tensor with {num_rows} rows, one per input"
    if isinstance(predictions, (tuple, list)):
        kinds = ", ".join(type(part).__name__ for part in predictions[:4])
        raise InputError(
            f"the model returned a {type(predictions).__name__} of {len(predictions)} ({kinds}): {expected}; "
            "wrap it in a function that returns its predictions only"
        )
    if not isinstance(predictions, Tensor):
        raise InputError(f"the model returned {type(predictions).__name__}: {expected}")
    if predictions.shape[:1] != (num_rows,):
        raise InputError(f"the model returned {tuple(predictions.shape)}: {expected}")
    if not predictions.is_floating_point():
        raise InputError(f"the model returned {predictions.dtype}: expected floating-point predictions")
    return predictions


def _measure_model(predict: Predictor, task: Task, batch: Batch) -> dict[str, Ratio]:
    """The metrics of one batch, after checking the model's predictions."""
    predictions = check_predictions(predict(batch.inputs), num_rows=len(batch))
    num_nan = int(predictions.isnan().sum())
    if num_nan:
        raise InputError(f"{num_nan} of {predictions.numel()} predictions are not finite (NaN): expected numbers")
    metrics = task.metrics(predictions, batch)
    for name, ratio in metrics.items():  # infinite logits can be valid predictions, infinite errors cannot
        num_infinite = int((~ratio.numerator.isfinite()).sum())
        if num_infinite:
            raise InputError(
                f"{name} of {num_infinite} of {len(batch)} instances is not finite: expected finite predictions"
            )
    return metrics


class CompositionSums:
    """Sums of each metric's numerator and denominator per composition."""

    def __init__(self, num_compositions: int) -> None:
        self.num_compositions = num_compositions
        self.totals: dict[str, Tensor] = {}

    def add(self, metrics: Mapping[str, Ratio], batch: Batch) -> None:
        for name, ratio in metrics.items():
            total = self.totals.setdefault(name, torch.zeros(2, self.num_compositions, dtype=torch.float64))
            rows = torch.stack([ratio.numerator, ratio.denominator]).to("cpu", torch.float64)
            total.index_add_(1, batch.composition.to("cpu"), rows)

    def value(self, name: str) -> float:
        return compute_ratio(self.totals[name])

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of the metric over compositions; a single one has none, and its value twice."""
        value, found = self.value(name), deviations(self.totals[name])
        return found.interval(value) if len(found.influences) > 1 else (value, value)


def compute_ratio(totals: Float[Tensor, "2 compositions"]) -> float:
    """The metric: the sum of the numerators over that of the denominators."""
    numerator, denominator = totals.sum(dim=1).tolist()
    return float(numerator / denominator)


@dataclass(frozen=True)
class Deviations:
    """The influence of each of several independent parts on an estimate, and how many parts of equal weight they are worth."""

    influences: Float[Tensor, " parts"]
    effective_number: float | int

    def __sub__(self, other: Deviations) -> Deviations:
        return Deviations(self.influences - other.influences, min(self.effective_number, other.effective_number))

    def interval(self, value: float) -> tuple[float, float]:
        """Student's 95 % interval around the estimate; it has no end if there is a single part."""
        number = len(self.influences)
        if number == 1:
            return float("-inf"), float("inf")
        error = float((number / (number - 1) * self.influences.square().sum()).sqrt())
        half = student_quantile(self.effective_number - 1) * error
        return value - half, value + half


def deviations(totals: Float[Tensor, "2 compositions"]) -> Deviations:
    """Those of the compositions that occurred; the weight of a composition is its share of the denominator."""
    numerators, denominators = totals[:, totals[1] != 0]
    weights = denominators / denominators.sum()
    influences = (numerators - compute_ratio(totals) * denominators) / denominators.sum()
    jackknife = (1 - 1 / len(weights)) / (1 - weights)
    return Deviations(influences * jackknife, float(1 / weights.square().sum()))


@cache
def student_quantile(degrees: float | int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))


class _SplitSums:
    """Sums over one pass through a split: for the model, the references and the baselines."""

    def __init__(self, num_compositions: int) -> None:
        self.num_compositions = num_compositions
        self.model = CompositionSums(num_compositions)
        self.references: dict[Reference, CompositionSums] = {}
        self.baselines: dict[str, CompositionSums] = {}

    def add_references(self, task: Task, split: SplitName, batch: Batch) -> None:
        metrics = tuple(task.metrics(task.chance(batch), batch))
        for name, predictions in task.reference_predictions(batch, split=split, metrics=metrics).items():
            # metrics often share their optimum
            different = {id(prediction): prediction for prediction in predictions.values()}
            measured = {key: task.metrics(each, batch) for key, each in different.items()}
            chosen = {metric: measured[id(predictions[metric])][metric] for metric in metrics}
            self.references.setdefault(name, CompositionSums(self.num_compositions)).add(chosen, batch)

    def add_baselines(self, task: Task, batch: Batch) -> None:
        for name, predictions in task.baselines(batch).items():
            total = self.baselines.setdefault(name, CompositionSums(self.num_compositions))
            total.add(task.metrics(predictions, batch), batch)

    def score(self, metric: str) -> Score:
        low, high = self.model.interval(metric)
        return Score(
            value=self.model.value(metric),
            low=low,
            high=high,
            **{name: sums.value(metric) for name, sums in self.references.items()},
            sums=tuple(map(tuple, self.model.totals[metric].tolist())),
        )


def normalise(value: float, chance: float, ceiling: float, higher_is_better: bool) -> float:
    """The position of a value between chance (0) and ceiling (1)."""
    sign = 1 if higher_is_better else -1
    span = sign * (ceiling - chance)
    if span > 1e-9:
        return sign * (value - chance) / span
    return float(sign * (value - ceiling) >= -1e-9)


def describe_effort(config: RunConfig, result: Json) -> list[str]:
    """What forbids comparing the scores of a run with the paper's: fewer steps, or trained compositions that it does not fit."""
    task, steps = type(config.task), config.training.steps
    notes = []
    paper = default_run(task, "paper").training.steps if is_own(task) else steps
    if steps < paper:
        notes.append(f"{steps:,} of the paper's {paper:,} steps ({steps / paper:.0%})")
    name, score = next(iter(result["scores"]["test"].items()))
    if None not in (score.get("chance"), score.get("ceiling")):
        higher = result["metrics"][name]["higher_is_better"]
        reached = normalise(score["value"], score["chance"], score["ceiling"], higher)
        if reached < LEARNED:
            where = f"trained compositions are {max(reached, 0):.0%} of the way from chance to ceiling"
            notes.append(f"not converged, do not compare: {where}")
    return notes
