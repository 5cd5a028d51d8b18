"""What a task is: a frozen dataclass that samples batches, scores predictions, and knows chance and ceiling.

A task answers for itself: what its metrics are called, which sizes it has at each scale, what a probe should read, how an
instance is written or drawn. Nothing outside its folder knows a family by name. Batch i of a split is a pure function of
(task, seed, split, i); see `recombine.tasks.stream`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit
from recombine.errors import InputError, check_choice
from recombine.tasks.stream import Stream

SplitName = Literal["train", "test", "ood", "unknown"]
Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Batch:
    """Rows of a task; `latents` holds the modules that made each row, `info["composition"]` its composition's number.

    Where compositions differ in size, the shorter ones are filled up with -1.
    """

    inputs: Tensor
    targets: Tensor
    latents: Int[Tensor, "batch size"]
    info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def composition(self) -> Int[Tensor, " batch"]:
        """Index of each row's composition in `task.split.compositions(split)`."""
        return self.info["composition"]

    def __len__(self) -> int:
        return len(self.targets)


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


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A table of facts about a task, for `recombine check`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    note: str = ""


def measure_r2(error: Float[Tensor, " rows *outputs"], variance: Float[Tensor, "rows ..."]) -> dict[str, Ratio]:
    """R² as the mean over rows and outputs of 1 - error² / variance, and pooled, 1 - sum error² / sum variance.

    An output that hardly varies can outweigh hundreds of others in the mean; it cannot in the pooled one.
    """
    variance = variance.clamp_min(1e-12).expand_as(error).reshape(len(error), -1)
    error = error.reshape(len(error), -1)
    total = variance.sum(dim=1)
    return {
        "r2": Ratio((1 - error / variance).mean(dim=1), torch.ones_like(total)),
        "r2_pooled": Ratio(total - error.sum(dim=1), total),
    }


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
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
    # whether the tokens that are read see the rest and themselves, not one another
    isolated_queries: ClassVar[bool] = False
    # whether later tokens betray the answers to earlier ones, so that only causal models are asked the question
    betrays_answers: ClassVar[bool] = False

    seed: int = 0
    """Random seed for the split, the data and the initial parameters."""

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The run that `--scale` and `--model` start from; without a model, the task's default."""
        return Preset(task=cls(), model=cls.models[0] if model is None else model)

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
        """How many features, first in each token and the same in all tokens of a row, tell which task it is."""
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

    @abstractmethod
    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split; with `rows`, only these rows of it."""

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
    def oracle(self, batch: Batch) -> Tensor:
        """Predictions of the best predictor there is: what the input determines and no more."""

    @abstractmethod
    def describe(self, composition: Composition) -> str:
        """A composition in words or formulas."""

    @abstractmethod
    def render(self, batch: Batch, row: int) -> str:
        """One row of a batch as text, for people."""

    def baselines(self, batch: Batch) -> dict[str, Tensor]:
        """Predictions of simple strategies by name, for comparison."""
        return {}

    def audits(self, num_instances: int) -> list[Audit]:
        """What is worth knowing about the family before training on it, estimated from so many instances."""
        return []

    def draw(self, batch: Batch, row: int, path: Path | str) -> None:
        """Write a picture of one row."""
        raise InputError(f"task {self.name!r} has no picture: expected one that has, such as 'sraven'")

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        """A batch as named columns, for export."""
        return {
            "inputs": batch.inputs,
            "target": batch.targets,
            "latents": batch.latents,
            **batch.info,
        }

    def stream(self, split: SplitName, index: int, rows: range, device: torch.device | str) -> Stream:
        """The random numbers of rows of batch `index` of a split."""
        check_choice("split", split, self.splits)
        return Stream(self.name, self.seed, split, index, rows=rows, device=device)

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


def once_per_device(make: Callable[[Any, torch.device], Value]) -> Callable[[Any, torch.device | str], Value]:
    """A method that keeps what it makes for each device: frozen weights move there once."""

    @wraps(make)
    def kept(self: Any, device: torch.device | str) -> Value:
        place = torch.device(device)
        values = vars(self).setdefault(f"{make.__name__} once", {})
        if place not in values:
            values[place] = make(self, place)
        return values[place]

    return kept
