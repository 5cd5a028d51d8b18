"""Scores of predictions that were made anywhere: the same numbers, and the same verdict, as a module gets.

A file of predictions for exported rows has the column `row_id` and one of

    prediction    what a module returns for the row: numbers, or one score per class
    answer        an answer in the form of the column `target`: numbers, or class numbers
    response      the text that a language model (or a person) answered to a prompt; see `recombine.tasks.text`

The samples that lm-evaluation-harness logs (`--log_samples`) are responses too. Files are checked: every row once, all of one
export, no NaN. The rows are generated again from the task, so nothing in a file but its predictions is trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recombine.foundation.errors import InputError, check_choice
from recombine.inside.verdict import ScoreVerdict, judge_scores
from recombine.integrations.exchange.export import RowId, hash_export, read_columns
from recombine.tasks.base import Task
from recombine.tasks.sampling import SplitName, evaluation_batches
from recombine.tasks.text import PARSERS, Parser, TextForm
from recombine.training.schema import Json
from recombine.training.score import Scores, describe_metrics, score, scores_as_dict

Kind = Literal["prediction", "answer", "response"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions by split, in the order of the rows."""

    kind: Kind
    export: str  # the hash that all rows carry
    values: Mapping[str, Any]  # split -> an array of numbers, or a list of texts


def read_predictions(*paths: Path | str, parser: Parser = "lenient") -> Predictions:
    """Read and check one or more files of predictions. `parser` selects the lines of a log that has one per parser."""
    check_choice("parser", parser, PARSERS)
    files = [_read_file(Path(path), parser) for path in paths]
    kinds = {kind for kind, _, _ in files}
    if len(kinds) > 1:
        raise InputError(f"the files hold {' and '.join(sorted(kinds))} columns: expected one kind")
    kind = files[0][0]
    columns = [column for _, _, column in files]
    values: Any = [text for column in columns for text in column] if kind == "response" else _join(columns, kind)
    identities = [identity for _, column, _ in files for identity in column]
    _check_one_export(identities)
    by_split: dict[str, Any] = {}
    for split in dict.fromkeys(identity.split for identity in identities):
        order = _order_rows(identities, split)
        by_split[split] = [values[index] for index in order] if kind == "response" else values[order]
    return Predictions(kind=kind, export=identities[0].export, values=by_split)


def _read_file(path: Path, parser: Parser) -> tuple[Kind, list[RowId], Any]:
    """The kind of column, the identities, and the texts or numbers of one file."""
    columns = _unwrap_log(read_columns(path), parser)
    kinds = [kind for kind in KINDS if kind in columns]
    if "row_id" not in columns or len(kinds) != 1:
        raise InputError(
            f"{str(path)!r} has the columns {', '.join(columns) or 'none'}: expected row_id and one of {', '.join(KINDS)}"
        )
    rows, values = columns["row_id"], columns[kinds[0]]
    if len(_shape(rows)) != 1 or _shape(values)[:1] != _shape(rows):
        raise InputError(
            f"{str(path)!r} has {kinds[0]} of shape {_shape(values)} and row_id of shape {_shape(rows)}: expected one of "
            "each per exported row"
        )
    identities = [RowId.parse(str(text)) for text in rows]
    if not identities:
        raise InputError(f"{str(path)!r} has no rows: expected one per exported row")
    if kinds[0] != "response":
        return kinds[0], identities, _as_numbers(values, kinds[0], identities)
    for identity, response in zip(identities, values, strict=True):
        if not isinstance(response, str):
            raise InputError(f"the response to row {identity} is {type(response).__name__}: expected text")
    return "response", identities, [str(response) for response in values]


def _shape(column: Any) -> tuple[int, ...]:
    return column.shape if isinstance(column, np.ndarray) else (len(column),)


def _join(arrays: Sequence[NDArray[Any]], kind: str) -> NDArray[Any]:
    """The numbers of all files."""
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise InputError(
            f"{kind} has shape {shapes[0]} in one file and {shapes[1]} in another: expected the same shape"
        )
    return np.concatenate(arrays)


def _unwrap_log(columns: Mapping[str, Any], parser: str) -> Mapping[str, Any]:
    """Identities and responses from the samples of lm-evaluation-harness; other columns stay as they are.

    The harness logs a sample once per filter. All have the same response; those of one filter are kept.
    """
    if "doc" not in columns or "resps" not in columns:
        return columns
    chosen = columns.get("filter", [parser] * len(columns["doc"]))
    kept = [index for index, name in enumerate(chosen) if name == parser]
    try:
        return {
            "row_id": [columns["doc"][index]["row_id"] for index in kept],
            "response": [columns["resps"][index][0][0] for index in kept],
        }
    except (KeyError, IndexError, TypeError):
        raise InputError(
            "these samples of lm-evaluation-harness have no row_id or no response: expected those of an exported task"
        ) from None


def _check_one_export(identities: Sequence[RowId]) -> None:
    """Require rows of one export, with one number of rows, each at most once and within its range."""
    first = identities[0]
    for identity in identities:
        if (identity.export, identity.num_rows) != (first.export, first.num_rows):
            raise InputError(f"rows {first} and {identity} are of different exports: expected those of one export")
        if identity.row >= identity.num_rows:
            raise InputError(f"row {identity} does not exist: expected a row below {identity.num_rows}")
    twice, count = Counter(identities).most_common(1)[0]
    if count > 1:
        raise InputError(f"row {twice} occurs {count} times: expected every row once")


def _order_rows(identities: Sequence[RowId], split: str) -> list[int]:
    """Where the rows of a split are in the file, in the order of the split; a missing one is an error."""
    indices = {identity.row: index for index, identity in enumerate(identities) if identity.split == split}
    example = identities[next(iter(indices.values()))]
    num_missing = example.num_rows - len(indices)  # the file may claim any number of rows
    if num_missing:
        first = next(row for row in range(example.num_rows) if row not in indices)
        raise InputError(
            f"{num_missing} of {example.num_rows} rows of split {split!r} are missing, the first is "
            f"{example._replace(row=first)}: expected a prediction for every exported row"
        )
    return [indices[row] for row in range(example.num_rows)]


def _as_numbers(values: Any, kind: str, identities: Sequence[RowId]) -> NDArray[Any]:
    try:
        numbers = np.asarray(values)
        if numbers.dtype.kind in "OSU":  # null in JSON is NaN; text may be a number
            numbers = np.asarray([np.asarray(value, dtype=np.float64) for value in values])
        if numbers.dtype.kind not in "biuf":
            raise TypeError
    except (ValueError, TypeError, OverflowError):
        raise InputError(
            f"the column {kind!r} does not hold numbers of the same shape in every row: expected the shape of the target, "
            "or that of a module's prediction"
        ) from None
    bad = np.isnan(numbers.reshape(len(numbers), -1)).any(axis=1).nonzero()[0]
    if len(bad):
        raise InputError(
            f"{len(bad)} of {len(numbers)} rows have NaN in the column {kind!r}, the first is row "
            f"{identities[bad[0]]}: expected numbers"
        )
    return numbers.astype(np.float64) if numbers.dtype == np.longdouble else numbers


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
    verdict = None
    if {"test", "ood"} <= scores.keys():
        info = task.metric(next(iter(scores["test"])))
        verdict = judge_scores(
            scores_as_dict(scores),
            task.split.certificate.as_dict(),
            title=info.title,
            higher_is_better=info.higher_is_better,
            splits={split: task.split_title(split) for split in ("test", "ood")},
        )
    return ScoredPredictions(
        task=task,
        export=export,
        num_instances={split: len(predictions.values[split]) for split in scores},
        scores=scores,
        verdict=verdict,
        unparsed=None if form is None else unparsed,
    )


def as_predictions(task: Task, split: SplitName, predictions: Predictions) -> Tensor:
    """The predictions of a split as a module returns them."""
    values = torch.from_numpy(np.ascontiguousarray(predictions.values[split]))
    if predictions.kind == "prediction":
        return values if values.is_floating_point() else values.double()
    example = next(evaluation_batches(task, split, 1)).targets
    wanted = tuple(example.shape[1:])
    if values.shape[1:] != wanted and values[0].numel() != example.numel():
        raise InputError(
            f"answers have shape {tuple(values.shape[1:])} per row: expected {wanted}, as the column target has"
        )
    answers = values.reshape(len(values), *wanted)
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
