"""Base class of tasks: frozen dataclasses that sample batches, score predictions, and compute chance and ceiling.

A task defines its metrics, its sizes at each scale, what a probe reads, and how an instance is written or drawn. Probes,
reports and the command line use this interface only and name no family.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.compositions import Composition
from recombine.foundation.display import Table
from recombine.foundation.errors import InputError
from recombine.tasks.sampling import SPLIT_MEANINGS, SPLIT_TITLES, Batch, Sampler, SplitName

if TYPE_CHECKING:
    from markupsafe import Markup

    from recombine.tasks.reading import Reading
    from recombine.tasks.text import TextForm
    from recombine.tasks.view import Card, TokenView

MIN_VARIANCE = 1e-12  # of the targets that an R2 compares with


class Ratio(NamedTuple):
    """A metric before it is summed: its value over any set of rows is sum(numerator) / sum(denominator)."""

    numerator: Float[Tensor, " batch"]
    denominator: Float[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Title and direction of a metric."""

    title: str
    higher_is_better: bool = True


# metrics that several families share; a task names its own in `metric_info`
METRICS = {
    "r2": Metric(title="R²"),
    "r2_pooled": Metric(title="R² pooled"),
    "accuracy": Metric(title="accuracy"),
    "loss": Metric(title="squared error", higher_is_better=False),
}


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


Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
# scores that every result is compared with; see `Task.best_predictions`
Reference = Literal["chance", "ceiling", "agnostic"]
REFERENCES: tuple[Reference, ...] = get_args(Reference)
SUCCESS_THRESHOLD = 0.95  # of the headline metric of a row, in the default criterion


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The default run at a scale: a task, a model with its sizes, and training settings.

    `sizes` and `training` are plain data, because a task knows neither model classes nor the training loop.
    """

    task: Task
    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task(Sampler):
    """One task family at one setting. The dataclass is the configuration; derived values are properties."""

    summary: ClassVar[str]
    # Raise it when the same settings give different batches, losses or metrics than before. Runs with another version are
    # different runs. See docs/architecture.md.
    version: ClassVar[int] = 1
    models: ClassVar[tuple[str, ...]] = ("transformer",)  # models it has sizes for, the default first
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS
    module_title: ClassVar[str] = "module"  # in `describe`
    # descriptions of the export columns that only this task has
    column_info: ClassVar[Mapping[str, str]] = {
        "strengths": "strength of each module, 0 if it is not in the composition"
    }
    evaluation_instances: ClassVar[int] = 16_000  # per split, in a final evaluation
    training_evaluation_instances: ClassVar[int] = 1_000  # per split, in evaluations during training
    training_evaluations: ClassVar[int] = 8  # per run of up to 20,000 steps; up to 20 in longer runs
    # whether tokens that are read attend to the rest and to themselves, but not to one another
    isolated_queries: ClassVar[bool] = False
    # whether later tokens reveal the answers to earlier ones, so that models must be causal
    requires_causal_model: ClassVar[bool] = False

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The run that `--scale` and `--model` start from; without a model, the task's default."""
        return Preset(task=cls(), model=cls.models[0] if model is None else model)

    @property
    def headline(self) -> str:
        """The main metric: the first that `metrics` returns."""
        batch = self.sample("test", 0, batch_size=1)
        return next(iter(self.metrics(self.chance(batch), batch)))

    @classmethod
    def metric(cls, name: str) -> Metric:
        """How to show a metric. The default shows its name and assumes that higher is better."""
        return cls.metric_info.get(name, Metric(title=name.replace("_", " ")))

    @property
    def encoding_dim(self) -> int:
        """Number of features that encode the task: the first ones of each token, equal in all tokens of a row; 0 for none."""
        return 0

    @property
    def num_modules(self) -> int | None:
        """Total number of modules, for models with a feature per module; None if not defined."""
        return None

    @property
    def supervised_state_dim(self) -> int:
        """Number of supervised intermediate values, which models return after their predictions; 0 for none."""
        return 0

    @property
    def vocabulary_size(self) -> int | None:
        """Size of the vocabulary, for tasks whose inputs are token numbers; None for features."""
        return None

    prepared_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that `prepare` fills in, because they depend on files of the machine."""

    def prepare(self) -> Task:
        """The task with every setting that a run must record; a task that depends on files prepares them and adds their hash."""
        return self

    def artifacts(self) -> Mapping[str, bytes]:
        """Files to store in the run directory, by name, because the trained model needs them."""
        return {}

    @property
    @abstractmethod
    def output_dim(self) -> int:
        """Number of features of a prediction."""

    @property
    def num_read(self) -> int:
        """Number of tokens, at the end of the sequence, that are read as predictions; by default all."""
        return self.sequence_length

    @abstractmethod
    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """The loss that training minimises."""

    def loss_weight(self, batch: Batch) -> float | Tensor:
        """Number of terms that `loss` averages: the number of rows, unless it averages over tokens or steps.

        Several processes that train together each have some rows of a batch. The loss of the batch is the mean of theirs with
        these weights.
        """
        return float(len(batch))

    @abstractmethod
    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """Scores per row, by name; the headline metric first."""

    @abstractmethod
    def chance(self, batch: Batch) -> Tensor:
        """Predictions of the best predictor that ignores the input."""

    @abstractmethod
    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Tensor:
        """Predictions with the best expected value of `metric`, given the inputs and which compositions are possible.

        With `split`, which must be the split of the batch, the compositions of that split are equally likely. The score
        of these predictions is the *ceiling*: no predictor exceeds it, up to the sampling error of finitely many
        instances. Without `split`, all compositions of the family are equally likely. The score is then the *agnostic*
        optimum, which a predictor can reach without knowing what the split holds out. Where the exact optimum is not known,
        return predictions that are at least as good, such as the targets, and say so in the docstring.
        """

    def reference_predictions(
        self, batch: Batch, *, split: SplitName, metrics: Sequence[str]
    ) -> dict[Reference, dict[str, Tensor]]:
        """The predictions behind the reference scores of each metric.

        Override it where metrics or priors can share work; the result must agree with `best_predictions`.
        """
        ceiling, agnostic = (
            {metric: self.best_predictions(batch, split=prior, metric=metric) for metric in metrics}
            for prior in (split, None)
        )
        return {"chance": dict.fromkeys(metrics, self.chance(batch)), "ceiling": ceiling, "agnostic": agnostic}

    def split_title(self, split: SplitName) -> str:
        """A split in two or three words, for headings."""
        larger = split == "unknown" and self.split.only_larger
        return "more modules at once" if larger else SPLIT_TITLES.get(split, split)

    def split_meaning(self, split: SplitName) -> str:
        """What a split holds, in a line."""
        if split == "ood" and self.split.certificate.min_coverage == 0:
            return "held-out compositions, with modules never trained"
        larger = split == "unknown" and self.split.only_larger
        return "more modules at once than in training" if larger else SPLIT_MEANINGS.get(split, split)

    def describe(self, composition: Composition) -> str:
        """A composition as text; by default its module numbers."""
        return " + ".join(f"{self.module_title} {module}" for module in composition if module >= 0)

    def view(self, batch: Batch, row: int) -> TokenView:
        """One row as a sequence of tokens, for `render` and `picture`; tasks without it define these themselves."""
        raise InputError(f"task {self.name!r} has no picture: expected a task with pictures, such as 'sraven'")

    def render(self, batch: Batch, row: int) -> str:
        """One row of a batch as text."""
        from recombine.tasks.view import write_tokens

        return write_tokens(self.view(batch, row))

    def reading(self) -> Reading:
        """What a probe reads of this task."""
        from recombine.tasks.reading import Reading

        return Reading(self)

    def text_form(self) -> TextForm:
        """How instances are written as prompts, and how answers are read; see `recombine.tasks.text`."""
        raise InputError(f"task {self.name!r} has no text form: expected a task with one, such as 'sraven'")

    def baselines(self, batch: Batch) -> dict[str, Tensor]:
        """Predictions of simple strategies by name, for comparison."""
        return {}

    def evaluation_tables(
        self, predict: Callable[[Tensor], Tensor], num_instances: int, device: torch.device | str
    ) -> list[Table]:
        """Measurements of a predictor besides its scores, printed by `recombine evaluate`."""
        return []

    def picture(self, batch: Batch, row: int) -> Markup:
        """One row as an SVG picture; see `recombine.tasks.view`."""
        from recombine.tasks.view import draw_tokens

        return draw_tokens(self.view(batch, row))

    @property
    def success_criterion(self) -> str:
        """The criterion of `judge`, in words."""
        return f"its {self.metric(self.headline).title} is at least {SUCCESS_THRESHOLD}"

    def judge(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, Bool[Tensor, " batch"]]:
        """The predicted answers, for `card`, and which rows are right; by default according to the headline metric."""
        name, ratio = next(iter(self.metrics(predictions, batch).items()))
        value = ratio.numerator / ratio.denominator
        right = value >= SUCCESS_THRESHOLD if self.metric(name).higher_is_better else value <= 1 - SUCCESS_THRESHOLD
        return predictions, right

    def card(self, batch: Batch, row: int, answer: Tensor) -> Card:
        """One row with a model's answer, for the report. The default shows its text and the first numbers of both answers."""
        from markupsafe import Markup

        from recombine.tasks.view import Card, use_minus_signs

        remarks = (f"network {shorten(answer)}", f"target {shorten(batch.targets[row])}")
        modules = tuple(self.describe((module,)) for module in batch.latents[row].tolist() if module >= 0)
        picture = Markup('<pre class="instance-text">{}</pre>').format(use_minus_signs(self.render(batch, row)))
        return Card(picture=picture, composition=modules, remarks=remarks)

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        """Export columns that only this task has, described in `column_info`."""
        return {name: column for name, column in batch.info.items() if name != "composition"}

    def predict_answers(self, answers: Tensor) -> Tensor:
        """Predictions equivalent to these answers, which have the form of the targets; -1 where there is no target.

        The default makes a one-hot prediction for class numbers. Other answers are predictions already.
        """
        if answers.is_floating_point():
            return answers
        if not bool(((answers >= -1) & (answers < self.output_dim)).all()):
            outside = answers[(answers < -1) | (answers >= self.output_dim)][0]
            raise InputError(f"an answer is {int(outside)}: expected the number of a class, 0 to {self.output_dim - 1}")
        return one_hot(answers.clamp_min(0), self.output_dim).float()


def shorten(values: Tensor) -> str:
    """The first six numbers, with an ellipsis if there are more."""
    numbers = [f"{number:.3g}".replace("-", "−") for number in values.flatten().tolist()]
    return ", ".join([*numbers[:6], "…"] if len(numbers) > 6 else numbers)


def find_classes(package: str, path: Iterable[str], base: Any, name: str) -> dict[str, Any]:
    """Every concrete subclass of `base` in the modules of a package, by its attribute `name`, in the order of the modules."""
    modules = [importlib.import_module(module.name) for module in pkgutil.walk_packages(path, f"{package}.")]
    return {
        getattr(value, name): value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
        and hasattr(value, name)
    }
