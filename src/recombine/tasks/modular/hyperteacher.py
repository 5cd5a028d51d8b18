"""Hyperteacher: learn a family of networks from the encoding of a task and an input (SC, arXiv 2507.07207).

A task mixes at most K of M modules, with strengths z; a frozen linear hypernetwork (see `teacher.py`) makes of it

    y = relu(x . sum_m z_m Theta_m / sqrt(K) + sum_m z_m b_m / sqrt(K)) . Omega,   x uniform in [-1, 1]

A row is one task with a few inputs; each token is the encoding of the task (see `encodings`), then x. All sets of 1 to K
modules are trained or held out (`ood`), depending on the support (see `supports`). The split `unknown` has more active
modules than any training task.

One task of the hyperteacher as text or picture: its modules, its code, and inputs with their outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, get_args

import torch
from jaxtyping import Float, Int
from markupsafe import Markup
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.foundation.tables import Table
from recombine.random import Stream
from recombine.tasks.base import Preset, Scale, Task
from recombine.tasks.batch import Batch, Ratio, measure_r2
from recombine.tasks.modular.encodings import (
    Encoding,
    check_encoding,
    count_features,
    encode_strengths,
    measure_linearity,
)
from recombine.tasks.modular.supports import Support, split_support
from recombine.tasks.modular.teacher import Latents, ModularTeacher, apply_teacher, draw_strengths, draw_teacher
from recombine.tasks.reading import StrengthReading
from recombine.tasks.sampling import SplitName, once_per_device
from recombine.tasks.view import Panel, draw_tokens

NUM_SHOWN_FEATURES, NUM_SHOWN_LINES, NUM_SHOWN_SAMPLES = 8, 4, 2


def write_task(
    encoding: str,
    code: Float[Tensor, " features"],
    strengths: Float[Tensor, " modules"],
    x: Float[Tensor, "samples x"],
    y: Float[Tensor, "samples y"],
) -> str:
    """The text that `recombine show hyperteacher` prints."""
    lines = [describe_mixture(strengths), f"encoded as {encoding}:"]
    shown = NUM_SHOWN_FEATURES * NUM_SHOWN_LINES
    for start in range(0, min(len(code), shown), NUM_SHOWN_FEATURES):
        lines.append("  " + _write_numbers(code[start : start + NUM_SHOWN_FEATURES].tolist()))
    if len(code) > shown:
        lines.append(f"   … {len(code)} numbers in all")
    for number, (one_x, one_y) in enumerate(zip(x.tolist(), y.tolist(), strict=True), start=1):
        if number > NUM_SHOWN_SAMPLES:
            lines.append(f"… {len(x) - NUM_SHOWN_SAMPLES} more")
            break
        lines += [f"x{number}{_write_numbers(one_x)}", f" →{_write_numbers(one_y)}"]
    return "\n".join(lines)


def draw_task(
    encoding: str,
    inputs: Float[Tensor, "samples features"],
    targets: Float[Tensor, "samples y"],
    strengths: Float[Tensor, " modules"],
    code_size: int,
) -> Markup:
    """The picture of a task: a column per sample, with the code above the inputs and the outputs below them."""
    tokens = inputs.detach().cpu()
    return draw_tokens(
        title=describe_mixture(strengths),
        panels=[
            Panel(f"the task, encoded as {encoding}", tokens[:, :code_size].T.numpy()),
            Panel("input x", tokens[:, code_size:].T.numpy()),
            Panel("output y", targets.detach().cpu().T.numpy(), asked=range(len(tokens))),
        ],
        parts=[(f"{len(tokens)} samples of the task, each answered independently", len(tokens))],
        framed="what the network is asked for",
    )


def describe_mixture(strengths: Float[Tensor, " modules"]) -> str:
    """The modules of a task with their strengths."""
    mixed = " + ".join(f"{strength:.2f} × module {m}" for m, strength in enumerate(strengths.tolist()) if strength)
    return f"task = {mixed}"


def _write_numbers(values: list[float]) -> str:
    """The first few, and a sign where there are more."""
    cut = " …" if len(values) > NUM_SHOWN_FEATURES else ""
    return "".join(f"{value:7.2f}" for value in values[:NUM_SHOWN_FEATURES]) + cut


BATCHES_PER_KEY = 16  # consecutive batches that share a key of the stream


@dataclass(frozen=True, kw_only=True)
class Hyperteacher(Task):
    """Predict the outputs of a network that mixes a few modules, given their strengths."""

    name: ClassVar[str] = "hyperteacher"
    summary: ClassVar[str] = "predict what a mixture of frozen modules does to an input (arXiv 2507.07207)"
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood", "unknown")
    evaluation_instances: ClassVar[int] = 4_000
    max_batches_at_once: ClassVar[int] = 16
    models: ClassVar[tuple[str, ...]] = ("mlp", "hypernetwork", "task_transformer")

    num_modules: int = 16
    """Number of modules."""
    num_active: int = 3
    """Maximum number of modules in a training task."""
    x_dim: int = 16
    """Number of features of an input x."""
    teacher_dim: int = 16
    """Number of hidden units per layer of the teacher."""
    y_dim: int = 16
    """Number of features of an output y."""
    teacher_layers: int = 1
    """Number of hidden layers of the teacher, each with its own modules."""
    latents: Latents = "discrete"
    """Strengths of active modules: 0.5, 0.6, ..., 1 (discrete), always 1 (k_hot), or any from 0.5 to 1 (continuous)."""
    encoding: Encoding = "identity"
    """How the task is encoded in the inputs."""
    num_shots: int = 50
    """Number of examples (x, y) in the encoding few_shot."""
    support: Support = "random"
    """Which compositions are trained."""
    held_out: float = 0.25
    """Fraction of compositions held out. disconnected and non_compositional ignore it; unpopular_modules may exceed it."""
    num_extra: int = 1
    """Maximum number of additional modules in tasks of the split unknown; with 0, there is no such split."""
    num_samples: int = 16
    """Number of inputs x per task."""
    train_samples: int | None = None
    """Number of inputs x per task in training batches (default: num_samples)."""

    def __post_init__(self) -> None:
        check_choice("latents", self.latents, get_args(Latents))
        check_choice("encoding", self.encoding, get_args(Encoding))
        sizes = {
            name: getattr(self, name) for name in ("num_modules", "x_dim", "teacher_dim", "y_dim", "teacher_layers")
        }
        if self.num_samples < 2:
            raise InputError(f"num_samples is {self.num_samples}: expected at least 2, to have a variance")
        check_positive(**sizes, train_samples=self.train_length)
        if self.num_extra < 0:
            raise InputError(f"num_extra is {self.num_extra}: expected 0 or more modules")
        if self.encoding == "few_shot" and self.num_shots < 1:
            raise InputError(f"num_shots is {self.num_shots}: encoding few_shot expected at least 1 example")
        check_encoding(self.encoding, latents=self.latents, num_modules=self.num_modules)
        _ = self.split  # raise an error now if the split cannot cover all modules

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
        """Maximum number of modules in any task, trained or not."""
        return min(self.num_active + self.num_extra, self.num_modules)

    @property
    def encoding_dim(self) -> int:
        if self.encoding == "few_shot":
            return self.num_shots * (self.x_dim + self.y_dim)
        return count_features(self.encoding, num_modules=self.num_modules, num_slots=self.most_active)

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

    @property
    def num_read(self) -> int:
        return self.num_samples

    @cached_property
    def split(self) -> CompositionSplit:
        return split_support(
            self.support,
            num_modules=self.num_modules,
            num_active=self.num_active,
            held_out=self.held_out,
            seed=self.seed,
            most_active=self.most_active,
        )

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
        """Inputs x behind the code of a task (batch, sample, feature), and what the teacher makes of each x."""
        num_samples = self.train_length if split == "train" else self.num_samples
        composition, modules = self.draw_compositions(split, stream)
        strengths = self.draw_strengths(modules, stream)
        x = stream.uniform(num_samples, self.x_dim).mul_(2).sub_(1)
        y = self.apply(strengths, x)
        if self.encoding == "few_shot":
            shots = stream.uniform(self.num_shots, self.x_dim).mul_(2).sub_(1)
            code = torch.cat([shots, self.apply(strengths, shots)], dim=-1).flatten(1)
        else:
            code = encode_strengths(
                self.encoding, self.name, self.seed, strengths=strengths, modules=modules, num_slots=self.most_active
            )
        inputs = torch.cat([code[:, None].expand(-1, num_samples, -1), x], dim=-1)
        return Batch(inputs, y, modules, {"composition": composition, "strengths": strengths})

    def draw_strengths(self, modules: Int[Tensor, "rows active"], stream: Stream) -> Float[Tensor, "rows modules"]:
        """The strength of each module; 0 for modules outside the composition."""
        return draw_strengths(modules, stream, num_modules=self.num_modules, latents=self.latents)

    def apply(
        self, strengths: Float[Tensor, "rows modules"], x: Float[Tensor, "rows samples x"]
    ) -> Float[Tensor, "rows samples y"]:
        """The teacher's outputs for x."""
        return apply_teacher(self.teacher_on(x.device), strengths / math.sqrt(self.num_active), x)

    @cached_property
    def teacher(self) -> ModularTeacher:
        return draw_teacher(
            self.name,
            self.seed,
            num_modules=self.num_modules,
            input_dim=self.x_dim,
            hidden_dim=self.teacher_dim,
            output_dim=self.y_dim,
            num_layers=self.teacher_layers,
        )

    @once_per_device
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
        return self.apply(self.draw_strengths(modules, stream), x).double().mean(dim=(0, 1)).float()

    def best_predictions(
        self, batch: Batch, *, split: SplitName | None, metric: str
    ) -> Float[Tensor, "batch samples y"]:
        """The targets, for any prior: exact where the encoding determines the strengths of the modules.

        With too few examples in the encoding `few_shot` it does not, and this is only an upper bound.
        """
        return batch.targets

    def tables(self, num_instances: int) -> list[Table]:
        """How linearly the strengths can be decoded from each encoding that these settings allow."""
        rows = []
        for encoding in get_args(Encoding):
            try:
                task = replace(self, encoding=encoding, num_samples=2)
            except InputError:
                continue
            batches = [task.sample(split, 0, batch_size=num_instances) for split in ("test", "ood")]
            codes = torch.cat([batch.inputs[:, 0, : task.encoding_dim] for batch in batches])
            strengths = torch.cat([batch.info["strengths"] for batch in batches])
            rows.append((encoding, task.encoding_dim, *measure_linearity(codes, strengths, num_instances // 2)))
        return [
            Table(
                title="how linearly the strengths of modules can be decoded from an encoding",
                columns=("encoding", "features", "R² on test", "R² on ood"),
                rows=tuple(rows),
                note="ridge regression, fitted on other tasks of the training compositions",
            )
        ]

    def reading(self) -> StrengthReading:
        return StrengthReading(self)

    def describe(self, composition: Composition) -> str:
        return " + ".join(f"module {module}" for module in composition if module >= 0)

    def picture(self, batch: Batch, row: int) -> Markup:
        task, strengths = batch.inputs[row], batch.info["strengths"][row]
        return draw_task(self.encoding, task, batch.targets[row], strengths, self.encoding_dim)

    def render(self, batch: Batch, row: int) -> str:
        x = batch.inputs[row, :, self.encoding_dim :]
        code = batch.inputs[row, 0, : self.encoding_dim]
        return write_task(self.encoding, code, batch.info["strengths"][row], x, batch.targets[row])
