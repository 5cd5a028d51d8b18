"""Hyperteacher: learn a family of networks from the encoding of a task and an input (SC, arXiv 2507.07207).

A task mixes at most K of M modules with strengths z, which a frozen linear hypernetwork (see `teacher`) maps to

    y = relu(x . sum_m z_m Theta_m / sqrt(K) + sum_m z_m b_m / sqrt(K)) . Omega,   x uniform in [-1, 1]

A row is one task with a few inputs; each token is the encoding of the task (see `encodings`), then x. All sets of 1 to K
modules are trained or held out (`ood`), depending on the support (see `supports`). The split `unknown` has more active
modules than any training task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.foundation.errors import InputError, check_positive, require
from recombine.random import Stream
from recombine.tasks.base import Preset, Ratio, Scale, measure_r2
from recombine.tasks.modular.mixture import MixtureTask
from recombine.tasks.modular.teacher import (
    ModularTeacher,
    apply_teacher,
    describe_mixture,
    draw_teacher,
)
from recombine.tasks.reading import StrengthReading
from recombine.tasks.sampling import Batch, SplitName, cached_per_device
from recombine.tasks.view import Panel, TokenView

BATCHES_PER_KEY = 16  # number of consecutive batches that share a key of the stream


@dataclass(frozen=True, kw_only=True)
class Hyperteacher(MixtureTask):
    """Predict the outputs of a network that mixes a few modules, given their strengths."""

    name: ClassVar[str] = "hyperteacher"
    summary: ClassVar[str] = "predict what a mixture of frozen modules does to an input (arXiv 2507.07207)"
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood", "unknown")
    evaluation_instances: ClassVar[int] = 4_000
    max_batches_at_once: ClassVar[int] = 16
    models: ClassVar[tuple[str, ...]] = ("mlp", "hypernetwork", "task_transformer")

    x_dim: int = 16
    """Number of features of an input x."""
    teacher_dim: int = 16
    """Number of hidden units per layer of the teacher."""
    y_dim: int = 16
    """Number of features of an output y."""
    teacher_layers: int = 1
    """Number of hidden layers of the teacher, each with its own modules."""
    num_shots: int = 50
    """Number of examples (x, y) in the encoding few_shot."""
    num_extra: int = 1
    """Maximum number of additional modules in tasks of the split unknown; with 0, there is no such split."""
    num_samples: int = 16
    """Number of inputs x per task."""
    train_samples: int | None = None
    """Number of inputs x per task in training batches (default: num_samples)."""

    def __post_init__(self) -> None:
        require(self.num_samples > 1, "num_samples", self.num_samples, "at least 2, to have a variance")
        require(self.num_extra >= 0, "num_extra", self.num_extra, "0 or more modules")
        check_positive(x_dim=self.x_dim, teacher_dim=self.teacher_dim, y_dim=self.y_dim, num_shots=self.num_shots)
        check_positive(teacher_layers=self.teacher_layers, train_samples=self.train_length)
        super().__post_init__()

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The paper's 16 modules, 300,000 steps at a constant rate; the smaller scales have 8 modules, 2 inputs per task in
        training batches, and a cosine at a higher rate. The task transformer has positions, so it trains on as many inputs.
        """
        model = model or "mlp"
        if scale == "paper":
            training = {"steps": 300_000, "learning_rate": 3e-4, "warmup_steps": 0, "schedule": "constant"}
            return Preset(task=cls(), model=model, training={**training, "weight_decay": 3e-3})
        positions = model == "task_transformer"
        sizes: dict[str, dict[str, int]] = {
            "mlp": {"num_layers": 2, "hidden_dim": 128},
            "hypernetwork": {"hidden_dim": 64},
            "task_transformer": {"num_layers": 2, "embedding_dim": 64, "kqv_dim": 64, "mlp_dim": 256},
        }
        return Preset(
            task=cls(num_modules=8, x_dim=8, teacher_dim=8, y_dim=8, train_samples=None if positions else 2),
            model=model,
            sizes=sizes.get(model, {}),
            training={
                "steps": {"tiny": 2_000, "small": 4_000}[scale],
                "learning_rate": 1e-3 if positions else 3e-3,
                "weight_decay": 3e-3,
                "warmup_steps": 100,
            },
        )

    @property
    def most_active(self) -> int:
        return min(self.num_active + self.num_extra, self.num_modules)

    @property
    def encoding_dim(self) -> int:
        if self.encoding == "few_shot":
            return self.num_shots * (self.x_dim + self.y_dim)
        return super().encoding_dim

    @property
    def input_dim(self) -> int:
        return self.encoding_dim + self.x_dim

    @property
    def output_dim(self) -> int:
        return self.y_dim

    @property
    def sequence_length(self) -> int:
        return self.num_samples

    @property
    def train_length(self) -> int:
        return self.num_samples if self.train_samples is None else self.train_samples

    def stream(
        self, split: SplitName, index: int, *, batch_size: int, rows: range | None, device: torch.device | str
    ) -> Stream:
        """The random numbers of a batch: consecutive batches are consecutive rows under one key."""
        key, number = divmod(index, BATCHES_PER_KEY)
        rows = range(batch_size) if rows is None else rows
        rows = range(number * batch_size + rows.start, number * batch_size + rows.stop)
        return super().stream(split, key, batch_size=batch_size, rows=rows, device=device)

    def explain_empty(self, split: SplitName) -> str:
        return "expected num_extra and modules left for it"

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Inputs x, each preceded by the code of the task (batch, sample, feature), and the teacher's outputs."""
        num_samples = self.train_length if split == "train" else self.num_samples
        composition, modules = self.draw_compositions(split, stream)
        strengths = self.draw_strengths(modules, stream)
        x = stream.uniform(num_samples, self.x_dim).mul_(2).sub_(1)
        y = self.apply(strengths, x)
        if self.encoding == "few_shot":
            shots = stream.uniform(self.num_shots, self.x_dim).mul_(2).sub_(1)
            code = torch.cat([shots, self.apply(strengths, shots)], dim=-1).flatten(1)
        else:
            code = self.encode(strengths)
        inputs = torch.cat([code[:, None].expand(-1, num_samples, -1), x], dim=-1)
        return Batch(inputs, y, modules, {"composition": composition, "strengths": strengths})

    def apply(
        self, strengths: Float[Tensor, "rows modules"], x: Float[Tensor, "rows samples x"]
    ) -> Float[Tensor, "rows samples y"]:
        """The teacher's outputs for x."""
        return apply_teacher(self.teacher_on(x.device), strengths / math.sqrt(self.num_active), x)

    @cached_property
    def teacher(self) -> ModularTeacher:
        widths = (self.x_dim, *[self.teacher_dim] * self.teacher_layers, self.y_dim)
        return draw_teacher(self.name, self.seed, num_modules=self.num_modules, widths=widths)

    @cached_per_device
    def teacher_on(self, device: torch.device) -> ModularTeacher:
        return self.teacher.to(device)

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Squared error."""
        return (self.read(predictions, batch) - batch.targets).square().mean()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """R² as published, the mean, and pooled; the variance is that of an output over the task's own samples."""
        targets = batch.targets.double()
        error = (self.read(predictions, batch).double() - targets).square()
        return measure_r2(error, targets.var(dim=1, correction=0, keepdim=True))

    def read(self, predictions: Tensor, batch: Batch) -> Float[Tensor, "batch samples y"]:
        """Predictions in the shape of the targets, from any layout with the same number of values."""
        if predictions.numel() != batch.targets.numel():
            raise InputError(
                f"predictions have shape {tuple(predictions.shape)}: expected {tuple(batch.targets.shape)}, "
                "every output of every sample"
            )
        return predictions.reshape(batch.targets.shape)

    def chance(self, batch: Batch) -> Float[Tensor, "batch samples y"]:
        """The best constant: the mean output of training."""
        return self.mean_target.to(batch.targets.device).expand_as(batch.targets)

    @cached_property
    def mean_target(self) -> Float[Tensor, " y"]:
        """Mean of y over 65,536 inputs from the training distribution."""
        stream = Stream(self.name, self.seed, "mean target", rows=range(65_536))
        _, modules = self.draw_compositions("train", stream)
        x = stream.uniform(1, self.x_dim) * 2 - 1
        strengths = self.draw_strengths(modules, stream)
        return self.apply(strengths, x).double().mean(dim=(0, 1)).float()

    def best_predictions(
        self, batch: Batch, *, split: SplitName | None, metric: str
    ) -> Float[Tensor, "batch samples y"]:
        """The targets, for any prior: exact where the encoding determines the strengths of the modules.

        With too few examples in the encoding `few_shot` it does not, and this is only an upper bound.
        """
        return batch.targets

    def reading(self) -> StrengthReading:
        return StrengthReading(self)

    def view(self, batch: Batch, row: int) -> TokenView:
        """A column per sample, with the code above the inputs and the outputs below them."""
        tokens, size = batch.inputs[row].cpu(), self.encoding_dim
        return TokenView(
            title=describe_mixture(batch.info["strengths"][row]),
            panels=[
                Panel(f"the task, encoded as {self.encoding}", tokens[:, :size].T.numpy()),
                Panel("input x", tokens[:, size:].T.numpy()),
                Panel("output y", batch.targets[row].cpu().T.numpy(), asked=range(len(tokens))),
            ],
            parts=[(f"{len(tokens)} samples of the task, each answered independently", len(tokens))],
        )
