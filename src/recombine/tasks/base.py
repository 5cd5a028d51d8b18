"""What a task is: a frozen dataclass that samples batches, scores predictions, and knows chance and ceiling.

A task answers for itself: what its metrics are called, which sizes it has at each scale, what a probe should read, how an
instance is written or drawn. Nothing outside its folder knows a family by name. Batch i of a split is a pure function of
(task, seed, split, i); see `recombine.tasks.stream`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit
from recombine.drawing.card import Card, text_card
from recombine.errors import InputError, check_choice
from recombine.settings import Settings
from recombine.tables import Table
from recombine.tasks.batch import Batch
from recombine.tasks.stream import Stream

if TYPE_CHECKING:
    from recombine.tasks.reading import Reading

SplitName = Literal["train", "test", "ood", "unknown"]
Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
# scores that every result is compared with; see `Task.best_predictions`
Reference = Literal["chance", "ceiling", "agnostic"]
REFERENCES: tuple[Reference, ...] = get_args(Reference)
MIN_VARIANCE = 1e-12  # of the targets that an R2 compares with
RIGHT_FROM = 0.95  # of the headline metric of a row, where a task does not say what is right


class Ratio(NamedTuple):
    """A metric before it is summed: its value over any set of rows is sum(numerator) / sum(denominator)."""

    numerator: Float[Tensor, " batch"]
    denominator: Float[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a metric is shown, and which way is better."""

    title: str
    higher_is_better: bool = True


# metrics that several families share; a task names its own in `metric_info`
METRICS = {
    "r2": Metric(title="R²"),
    "r2_pooled": Metric(title="R² pooled"),
    "accuracy": Metric(title="accuracy"),
    "loss": Metric(title="squared error", higher_is_better=False),
}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The run that a scale stands for: a task, a kind of model with its sizes, and settings of the training.

    `sizes` and `training` are plain data, because a task knows neither model classes nor the training loop.
    """

    task: Task
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def measure_r2(error: Float[Tensor, " rows *outputs"], variance: Float[Tensor, "rows ..."]) -> dict[str, Ratio]:
    """R² as the mean over rows and outputs of 1 - error² / variance, and pooled, 1 - sum error² / sum variance.

    An output that hardly varies can outweigh hundreds of others in the mean; it cannot in the pooled one.
    """
    variance = variance.clamp_min(MIN_VARIANCE).expand_as(error).reshape(len(error), -1)
    error = error.reshape(len(error), -1)
    total = variance.sum(dim=1)
    return {
        "r2": Ratio((1 - error / variance).mean(dim=1), torch.ones_like(total)),
        "r2_pooled": Ratio(total - error.sum(dim=1), total),
    }


@dataclass(frozen=True, kw_only=True)
class Task(Settings, ABC):
    """One task family at one setting. The dataclass is the configuration; derived values are properties."""

    name: ClassVar[str]
    summary: ClassVar[str]
    # Raise it when the same settings give other batches, losses or metrics than before: a run of another version is another
    # run. See docs/architecture.md.
    version: ClassVar[int] = 1
    models: ClassVar[tuple[str, ...]] = ("transformer",)  # kinds of models it has sizes for, the default first
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood")
    evaluation_instances: ClassVar[int] = 16_000  # a split, in a final evaluation
    # How many training batches `sample_many` may make at once, for tasks whose small batches cost more in calls than in
    # numbers. Training always asks for groups that start at a multiple of `count_batches_at_once`.
    max_batches_at_once: ClassVar[int] = 1
    max_numbers_at_once: ClassVar[int] = 1 << 20  # of inputs
    # whether the tokens that are read see the rest and themselves, not one another
    isolated_queries: ClassVar[bool] = False
    # whether later tokens show the answers to earlier ones, so that only causal models are asked a question
    requires_causal_model: ClassVar[bool] = False

    seed: int = 0
    """Random seed for the split, the data and the initial parameters."""

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The run that `--scale` and `--model` start from; without a model, the task's default."""
        return Preset(task=cls(), model=cls.models[0] if model is None else model)

    @property
    def headline(self) -> str:
        """The metric that the answer is about: the first that `metrics` returns."""
        batch = self.sample("test", 0, batch_size=1)
        return next(iter(self.metrics(self.chance(batch), batch)))

    @classmethod
    def metric(cls, name: str) -> Metric:
        """How to show a metric; one that is not described is shown by its name, and more of it is better."""
        return cls.metric_info.get(name, Metric(title=name.replace("_", " ")))

    @cached_property
    @abstractmethod
    def split(self) -> CompositionSplit:
        """Which compositions are trained, held out, unknown."""

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Features of an input token."""

    @property
    def encoding_dim(self) -> int:
        """How many features, first in each token and the same in all tokens of a row, tell which task it is; 0 for none."""
        return 0

    @property
    def num_modules(self) -> int | None:
        """How many modules compositions are made of, for models that give each of them a feature; None if not said."""
        return None

    @property
    def thought_dim(self) -> int:
        """How many intermediate values are supervised, which models return behind their predictions; 0 for none."""
        return 0

    @property
    @abstractmethod
    def output_dim(self) -> int:
        """Features of a prediction."""

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Tokens of an input."""

    @property
    @abstractmethod
    def num_read(self) -> int:
        """How many tokens, at the end of the sequence, are read as predictions."""

    @property
    def train_length(self) -> int:
        """Tokens of an input in training batches, where it is not `sequence_length`."""
        return self.sequence_length

    @abstractmethod
    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """One instance of the split for each row of the stream, from which all random numbers are drawn.

        What a row gets must depend on its own numbers only, so that any part of a batch can be made alone.
        """

    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split; with `rows`, only these rows of it. A pure function of its arguments."""
        return self.make_batch(split, self.stream(split, index, batch_size=batch_size, rows=rows, device=device))

    def sample_many(
        self,
        split: SplitName,
        first: int,
        count: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> list[Batch]:
        """Batches `first` to `first + count - 1` of a split, made at once where the task can (`max_batches_at_once`).

        They are what `sample` returns, up to the rounding of matrix products, which may depend on the number of rows.
        """
        indices = range(first, first + count)
        if self.max_batches_at_once == 1 or count == 1:
            return [self.sample(split, index, batch_size=batch_size, rows=rows, device=device) for index in indices]
        streams = [self.stream(split, index, batch_size=batch_size, rows=rows, device=device) for index in indices]
        return self.make_batch(split, Stream.chain(streams)).divide(len(streams[0]))

    def count_batches_at_once(self, batch_size: int) -> int:
        """How many training batches are made at once: the largest power of two that both limits allow."""
        room = self.max_numbers_at_once // (batch_size * self.train_length * self.input_dim)
        return 1 << (max(1, min(room, self.max_batches_at_once)).bit_length() - 1)

    @abstractmethod
    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """What training minimises."""

    @abstractmethod
    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """Scores by name, the headline first, per row."""

    @abstractmethod
    def chance(self, batch: Batch) -> Tensor:
        """Predictions of the best predictor that ignores the input."""

    @abstractmethod
    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Tensor:
        """Predictions with the best expected value of `metric`, given the inputs and which compositions are possible.

        With `split`, which must be the split of the batch, the compositions of that split are equally likely. The score
        of these predictions is the *ceiling*: no predictor exceeds it, up to the sampling error of finitely many
        instances. Without, all compositions of the family are equally likely: the *agnostic* optimum, which a predictor
        can reach without knowing what the split holds out. Where the exact optimum is not known, return predictions that
        are at least as good, such as the targets, and say so in the docstring.
        """

    def reference_predictions(
        self, batch: Batch, *, split: SplitName, metrics: Sequence[str]
    ) -> dict[Reference, dict[str, Tensor]]:
        """The predictions behind the reference scores of each metric.

        Override it where metrics or priors can share work; the result must agree with `best_predictions`.
        """
        chance = self.chance(batch)
        priors: dict[Reference, SplitName | None] = {"ceiling": split, "agnostic": None}
        best: dict[Reference, dict[str, Tensor]] = {
            name: {metric: self.best_predictions(batch, split=prior, metric=metric) for metric in metrics}
            for name, prior in priors.items()
        }
        return {"chance": dict.fromkeys(metrics, chance), **best}

    @abstractmethod
    def describe(self, composition: Composition) -> str:
        """A composition in words or formulas."""

    @abstractmethod
    def render(self, batch: Batch, row: int) -> str:
        """One row of a batch as text, for people."""

    def reading(self) -> Reading:
        """What a probe reads of this task."""
        from recombine.tasks.reading import Reading  # which needs this class

        return Reading(self)

    def baselines(self, batch: Batch) -> dict[str, Tensor]:
        """Predictions of simple strategies by name, for comparison."""
        return {}

    def tables(self, num_instances: int) -> list[Table]:
        """Facts about the family that are worth knowing before training, estimated from `num_instances` instances."""
        return []

    def draw(self, batch: Batch, row: int, path: Path | str) -> None:
        """Write a picture of one row."""
        raise InputError(f"task {self.name!r} has no picture: expected one that has, such as 'sraven'")

    @property
    def right_means(self) -> str:
        """What `judge` calls right, in words."""
        return f"its {self.metric(self.headline).title} is at least {RIGHT_FROM}"

    def judge(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, Bool[Tensor, " batch"]]:
        """The answers that predictions give, for `card`, and which rows are right. By default, by the headline metric."""
        name, ratio = next(iter(self.metrics(predictions, batch).items()))
        value = ratio.numerator / ratio.denominator
        right = value >= RIGHT_FROM if self.metric(name).higher_is_better else value <= 1 - RIGHT_FROM
        return predictions, right

    def card(self, batch: Batch, row: int, answer: Tensor) -> Card:
        """One row with a model's answer, for the report: by default its text and the first numbers of both answers."""
        target = batch.targets[row].flatten().tolist()
        given = answer.flatten().tolist()
        remarks = (f"network {shorten(given)}", f"target {shorten(target)}")
        modules = tuple(self.describe((module,)) for module in batch.latents[row].tolist() if module >= 0)
        return text_card(self.render(batch, row), modules, remarks)

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        """A batch as named columns, for export."""
        return {
            "inputs": batch.inputs,
            "target": batch.targets,
            "latents": batch.latents,
            **batch.info,
        }

    def stream(
        self, split: SplitName, index: int, *, batch_size: int, rows: range | None, device: torch.device | str
    ) -> Stream:
        """The random numbers of batch `index` of a split, or of some of its rows; refuses a split without compositions."""
        check_choice("split", split, self.splits)
        if not self.split.compositions(split):
            raise InputError(f"split {split!r} of task {self.name!r} is empty: {self.explain_empty(split)}")
        rows = range(batch_size) if rows is None else rows
        return Stream(self.name, self.seed, split, index, rows=rows, device=device)

    def explain_empty(self, split: SplitName) -> str:
        """Why a split has no compositions, and what to change: the end of an error message."""
        return "expected settings that leave compositions for it"

    def draw_compositions(
        self, split: SplitName, stream: Stream
    ) -> tuple[Int[Tensor, " rows"], Int[Tensor, "rows size"]]:
        """A uniformly random composition for each row: its number, and its modules, then -1 up to the largest."""
        table = self._composition_tables.get((split, stream.device))
        if table is None:
            compositions = self.split.compositions(split)
            size = max(map(len, compositions))
            filled = [(*composition, *[-1] * (size - len(composition))) for composition in compositions]
            table = torch.tensor(filled, device=stream.device)
            self._composition_tables[split, stream.device] = table
        number = stream.integers(len(table), 1)[:, 0]
        return number, table[number]

    @cached_property
    def _composition_tables(self) -> dict[tuple[SplitName, torch.device], Tensor]:
        return {}


def shorten(numbers: Sequence[float], most: int = 6) -> str:
    """The first few numbers, and a sign where there are more."""
    shown = ", ".join(f"{number:.3g}" for number in numbers[:most])
    return f"{shown}, ..." if len(numbers) > most else shown
