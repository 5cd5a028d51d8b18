"""Scores of predictions that were made anywhere: the same numbers, and the same verdict, as a module gets.

The rows are made again from the task, so nothing in a file but its predictions is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recombine.diagnose import ScoreVerdict, judge_scores
from recombine.errors import InputError
from recombine.evaluate import Scores, describe_metrics, score, scores_as_dict
from recombine.exchange.identity import hash_export
from recombine.exchange.predictions import Predictions
from recombine.store import Json
from recombine.tasks import SplitName, Task
from recombine.tasks.evaluation import evaluation_batches
from recombine.tasks.text import Parser, TextForm


@dataclass(frozen=True, kw_only=True)
class ScoredPredictions:
    """Scores by split and metric, and the verdict as far as scores alone allow."""

    task: Task
    export: str
    num_instances: dict[str, int]
    scores: Scores
    verdict: ScoreVerdict | None  # None if there are no predictions for test or for ood
    unparsed: dict[str, int] | None = None  # responses without a readable answer, by split

    def as_dict(self) -> Json:
        value: Json = {
            "task": self.task.name,
            "split_sha256": self.task.split.certificate.sha256,
            "export": self.export,
            "num_instances": self.num_instances,
            "metrics": describe_metrics(self.task, self.scores.values()),
            "scores": scores_as_dict(self.scores),
            "verdict": None if self.verdict is None else self.verdict.as_dict(),
        }
        return value if self.unparsed is None else value | {"unparsed": self.unparsed}


def score_predictions(task: Task, predictions: Predictions, *, parser: Parser = "lenient") -> ScoredPredictions:
    """Score predictions for the rows that `recombine export` writes of this task; `parser` reads responses."""
    form = task.text_form() if predictions.kind == "response" else None
    task = task if form is None else form.task
    export = hash_export(task)
    if predictions.export != export:
        raise InputError(
            f"the predictions are for rows with hash {predictions.export}, but {task.name} with these settings has {export}: "
            "expected the same task, seed and settings as in the export"
        )
    for split in predictions.values:
        if split not in task.splits:
            raise InputError(f"the predictions are for split {split!r}: expected one of {', '.join(task.splits)}")
    scores: Scores = {}
    unparsed: dict[str, int] = {}
    for split in (name for name in task.splits if name in predictions.values):
        if form is None:
            scores[split] = _score_split(task, split, as_predictions(task, split, predictions))
        else:
            answers = [form.parse(response, parser) for response in predictions.values[split]]
            unparsed[split] = answers.count(None)
            scores[split] = _score_split(task, split, _predict_answers(form, split, answers))
    return ScoredPredictions(
        task=task,
        export=export,
        num_instances={split: predictions.count_rows(split) for split in scores},
        scores=scores,
        verdict=_judge(task, scores),
        unparsed=None if form is None else unparsed,
    )


def as_predictions(task: Task, split: SplitName, predictions: Predictions) -> Tensor:
    """The predictions of a split as a module returns them."""
    values = predictions.values[split]
    if predictions.kind == "answer":
        example = next(evaluation_batches(task, split, 1)).targets
        return _encode_answers(task, values, example)
    numbers = torch.from_numpy(np.ascontiguousarray(values))
    return numbers if numbers.is_floating_point() else numbers.double()


def _encode_answers(task: Task, values: NDArray[Any], example: Tensor) -> Tensor:
    wanted = tuple(example.shape[1:])
    if values.shape[1:] != wanted and values[0].size != example.numel():
        raise InputError(f"answers have shape {values.shape[1:]} per row: expected {wanted}, as the column target has")
    answers = torch.from_numpy(np.ascontiguousarray(values)).reshape(len(values), *wanted)
    if example.is_floating_point():
        return answers.double()
    if not torch.equal(answers.double(), answers.double().round()):
        raise InputError(f"answers are not whole numbers: expected numbers of classes, 0 to {task.output_dim - 1}")
    return task.predict_answers(answers.long())


def _predict_answers(form: TextForm, split: SplitName, answers: Sequence[str | None]) -> Tensor:
    """The predictions that mean some answers, batch by batch."""
    first, parts = 0, []
    for batch in evaluation_batches(form.task, split, len(answers)):
        parts.append(form.predict(answers[first : first + len(batch)], batch))
        first += len(batch)
    return torch.cat(parts)


def _score_split(task: Task, split: SplitName, predictions: Tensor) -> dict[str, Any]:
    """As `recombine.score` for a module that knows the predictions of the rows in their order."""
    taken = 0

    def predict(inputs: Tensor) -> Tensor:
        nonlocal taken
        rows = predictions[taken : taken + len(inputs)]
        taken += len(inputs)
        return rows

    return score(predict, task, splits=[split], num_instances=len(predictions))[split]


def _judge(task: Task, scores: Scores) -> ScoreVerdict | None:
    if not {"test", "ood"} <= scores.keys():
        return None
    metric = next(iter(scores["test"]))
    info = task.metric(metric)
    return judge_scores(
        scores_as_dict(scores),
        task.split.certificate.as_dict(),
        title=info.title,
        higher_is_better=info.higher_is_better,
        splits={split: task.split_title(split) for split in ("test", "ood")},
    )
