"""Functions of a modular teacher, inferred in context (When can transformers compositionally generalize in-context?,
arXiv 2407.12275).

A task is a composition of K of M modules with a strength z_m in [0.5, 1) for each of them (0 for all others). With the
frozen modules of `teacher`,

    y = relu(x . sum_m z_m Theta_m) . Omega,   x uniform in [-sqrt(3), sqrt(3)] (variance 1), no noise

A sequence contains examples (x, y) of one task, then queries (x, 0), each to be answered from the examples alone: queries
do not see one another. The *support* is the set of trained compositions (see `supports`); every other composition of K
modules is held out.

The *unstructured* control has the same number of tasks, but no two compositions share a module: each has K independent
modules of its own. What is learned about one does not help with another, and held-out compositions consist of weights that
were never trained. Modules are numbered consecutively, so the split's certificate shows this.
The range of strengths and the control's own modules are our choice; the paper does not specify them.

The agnostic optimum fits the strengths z of every composition to the examples by Gauss-Newton and uses the best fit. As
long as no hidden unit turns on or off, y is linear in z and passes through 0, so each step is an ordinary least-squares
problem:

    z <- argmin_z |y - S z|²,   S[t, m] = (x_t . Theta_m, where the unit is on) . Omega
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit, all_sets
from recombine.foundation.errors import InputError, check_positive, require
from recombine.random import Stream
from recombine.tasks.base import Preset, Ratio, Reference, Scale, Task, measure_r2
from recombine.tasks.modular.supports import InContextSupport, choose_support
from recombine.tasks.modular.teacher import (
    LOWEST_STRENGTH,
    ModularTeacher,
    apply_teacher,
    describe_mixture,
    draw_strengths,
    draw_teacher,
)
from recombine.tasks.reading import Reading, StrengthReading
from recombine.tasks.sampling import Batch, SplitName, cached_per_device
from recombine.tasks.text import round_decimals
from recombine.tasks.view import Panel, TokenView

NUM_STEPS = 8


def fit_strengths(
    teacher: ModularTeacher,
    modules: Int[Tensor, " active"],
    x: Float[Tensor, "batch examples input"],
    y: Float[Tensor, "batch examples output"],
) -> Float[Tensor, "batch active"]:
    """The fitted strengths of these modules. The fit starts in the middle of their range."""
    theta = teacher.weights[0][modules]
    preactivations = (x.flatten(0, 1) @ theta.transpose(0, 1).flatten(1)).view(*x.shape[:2], *theta.shape[::2])
    strengths = x.new_full((len(x), len(modules)), (LOWEST_STRENGTH + 1) / 2)
    for _ in range(NUM_STEPS):
        on = (strengths[:, None, None] @ preactivations) > 0
        slopes = ((preactivations * on) @ teacher.readout).transpose(2, 3).flatten(1, 2)
        gram = slopes.mT @ slopes + 1e-6 * torch.eye(len(modules), dtype=x.dtype, device=x.device)
        strengths = torch.linalg.solve(gram, slopes.mT @ y.flatten(1)[..., None])[..., 0].clamp(LOWEST_STRENGTH, 1)
    return strengths


Modules = Literal["shared", "own"]
MAX_FITTED = 1_000
MAX_DECIMALS = 4


@dataclass(frozen=True, kw_only=True)
class InContext(Task):
    """Predict the outputs of a function that mixes a few modules, from examples of it."""

    name: ClassVar[str] = "in_context"
    summary: ClassVar[str] = "infer a mixture of teacher modules from examples of it (arXiv 2407.12275)"
    isolated_queries: ClassVar[bool] = True
    evaluation_instances: ClassVar[int] = 2_000
    models: ClassVar[tuple[str, ...]] = ("transformer", "hypernetwork_transformer")

    num_modules: int = 6
    """Number of modules of the teacher."""
    num_active: int = 2
    """Number of modules per task."""
    support: InContextSupport = "connected"
    """Which compositions are trained: a ring, two separate halves, or those given by --combinations."""
    combinations: str = ""
    """The trained compositions of a custom support, such as "0-1 1-2 2-3"."""
    modules: Modules = "shared"
    """Whether compositions share modules or each has its own (the unstructured control)."""
    num_examples: int = 48
    """Number of examples per sequence."""
    num_queries: int = 16
    """Number of queries per sequence, each answered independently."""
    input_size: int = 16
    """Number of features of x."""
    hidden_size: int = 16
    """Number of hidden units of the teacher."""
    output_size: int = 4
    """Number of features of y."""
    decimals: int = 0
    """Number of decimals to which x and y are rounded; 0 for no rounding."""

    def __post_init__(self) -> None:
        check_positive(num_examples=self.num_examples, num_queries=self.num_queries, input_size=self.input_size)
        check_positive(hidden_size=self.hidden_size, output_size=self.output_size)
        check_positive(num_modules=self.num_modules, num_active=self.num_active)
        require(0 <= self.decimals <= MAX_DECIMALS, "decimals", self.decimals, f"0 to {MAX_DECIMALS}")
        most = f"at most num_modules = {self.num_modules}"
        require(self.num_active <= self.num_modules, "num_active", self.num_active, most)
        count = math.comb(self.num_modules, self.num_active)
        if count > MAX_FITTED:
            raise InputError(
                f"{self.num_active} of {self.num_modules} modules make {count} compositions: expected at most "
                f"{MAX_FITTED}, because the agnostic optimum fits each of them"
            )
        _ = self.split  # raise an error now if the support is not possible

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """`paper` has the generator sizes of a related paper; the smaller scales are chosen to take minutes on a CPU."""
        model = model or "transformer"
        layers, width = {"tiny": (2, 48), "small": (2, 64), "paper": (6, 128)}[scale]
        task = cls(num_examples=32, num_queries=8, input_size=8, hidden_size=16)
        if scale == "paper":
            task = cls(num_examples=64, num_queries=16, input_size=16, hidden_size=16)
        sizes: dict[str, Any] = {"num_layers": layers, "embedding_dim": width, "kqv_dim": width, "mlp_dim": 2 * width}
        sizes |= {"attention": "softmax", "num_heads": 4, "position": "none"}
        if model == "hypernetwork_transformer":
            sizes["execution_dim"] = 2 * task.hidden_size  # twice the teacher's hidden units
        return Preset(
            task=task,
            model=model,
            sizes=sizes if model in cls.models else {},
            training={
                "steps": {"tiny": 600, "small": 6_000, "paper": 100_000}[scale],
                "batch_size": 128 if scale == "paper" else 64,
                "learning_rate": 1e-3 if scale == "paper" else 2e-3,
                "weight_decay": 0.01,
                "warmup_steps": 100,
            },
        )

    @property
    def input_dim(self) -> int:
        return self.input_size + self.output_size

    @property
    def output_dim(self) -> int:
        return self.output_size

    @property
    def sequence_length(self) -> int:
        return self.num_examples + self.num_queries

    @property
    def num_read(self) -> int:
        return self.num_queries

    @cached_property
    def split(self) -> CompositionSplit:
        everything = all_sets(self.num_modules, self.num_active)
        train = choose_support(self.support, self.combinations, self.num_modules, self.num_active)
        if self.modules == "own":
            size = self.num_active
            own = tuple(tuple(range(first, first + size)) for first in range(0, size * len(everything), size))
            return CompositionSplit(train=own[: len(train)], ood=own[len(train) :])
        return CompositionSplit(train=train, ood=tuple(modules for modules in everything if modules not in train))

    @property
    def latent_size(self) -> int:
        """Total number of modules: M, or K per composition."""
        return self.num_modules if self.modules == "shared" else self.num_active * len(self.all_compositions)

    @property
    def all_compositions(self) -> tuple[Composition, ...]:
        return self.split.train + self.split.ood

    @cached_property
    def teacher(self) -> ModularTeacher:
        return draw_teacher(
            self.name,
            self.seed,
            num_modules=self.latent_size,
            widths=(self.input_size, self.hidden_size, self.output_size),
            distribution="normal",
            weight_scale=1.0,
            bias_range=(0.0, 0.0),
        )

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Examples, then queries without answers; `info["strengths"]` holds each row's z, one number per module."""
        composition, modules = self.draw_compositions(split, stream)
        latent = self.draw_latent(modules, stream)
        x = (2 * stream.uniform(self.sequence_length, self.input_size) - 1) * math.sqrt(3)
        x = round_decimals(x, self.decimals)
        y = round_decimals(apply_teacher(self.teacher_on(stream.device), latent, x), self.decimals)
        inputs = torch.cat([x, y], dim=-1)
        inputs[:, self.num_examples :, self.input_size :] = 0
        targets = y[:, self.num_examples :].contiguous()
        return Batch(inputs, targets, modules, {"composition": composition, "strengths": latent})

    def draw_latent(self, modules: Int[Tensor, "rows active"], stream: Stream) -> Float[Tensor, "rows latent"]:
        """z of the teacher: random strengths where the modules are, 0 elsewhere."""
        return draw_strengths(modules, stream, num_modules=self.latent_size, latents="continuous").contiguous()

    @cached_per_device
    def teacher_on(self, device: torch.device) -> ModularTeacher:
        return self.teacher.to(device)

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Squared error at the queries."""
        return (self.read(predictions) - batch.targets).square().mean()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """R² as a mean and pooled; the variance is that of an output over the queries and examples of the sequence."""
        targets = batch.targets.double()
        examples = batch.inputs[:, : self.num_examples, self.input_size :].double()
        variance = torch.cat([examples, targets], dim=1).var(dim=1, correction=0)
        return measure_r2((self.read(predictions).double() - targets).square().mean(dim=1), variance)

    def read(self, predictions: Tensor) -> Float[Tensor, "batch queries output"]:
        """The queries' predictions, from a model that answers at the queries or at every token."""
        lengths = (self.num_queries, self.sequence_length)
        if predictions.ndim != 3 or predictions.shape[1] not in lengths or predictions.shape[2] != self.output_size:
            shape = tuple(predictions.shape)
            raise InputError(f"predictions have shape {shape}: expected (rows, {self.num_queries}, {self.output_size})")
        return predictions[:, -self.num_queries :]

    def chance(self, batch: Batch) -> Float[Tensor, "batch queries output"]:
        """The best constant: the mean target of training."""
        return self.mean_target.to(batch.targets).expand_as(batch.targets)

    @cached_property
    def mean_target(self) -> Float[Tensor, " output"]:
        """Mean of y over 4,096 training sequences from a separate stream."""
        stream = Stream(self.name, self.seed, "mean target", rows=range(4_096))
        _, modules = self.draw_compositions("train", stream)
        latent = self.draw_latent(modules, stream)
        y = apply_teacher(self.teacher, latent, (2 * stream.uniform(16, self.input_size) - 1) * math.sqrt(3))
        return y.double().mean(dim=(0, 1)).float()

    def best_predictions(
        self, batch: Batch, *, split: SplitName | None, metric: str
    ) -> Float[Tensor, "batch queries output"]:
        """With a split, the targets; without, predictions from the examples and knowledge of the modules.

        Enough examples determine the task, so the targets are exact; with fewer they are only an upper bound. Without a
        split, the strengths of every composition are fitted to the examples and the best fit is used. This is optimal, up
        to the error of the fit, where the examples determine the task; where they do not, a better answer may exist.
        """
        if split is not None:
            return batch.targets
        return apply_teacher(
            self.teacher_on(batch.inputs.device),
            self.infer_latent(batch),
            batch.inputs[:, self.num_examples :, : self.input_size],
        )

    def reference_predictions(
        self, batch: Batch, *, split: SplitName, metrics: Sequence[str]
    ) -> dict[Reference, dict[str, Tensor]]:
        """One fit for all metrics."""
        return {
            "chance": dict.fromkeys(metrics, self.chance(batch)),
            "ceiling": dict.fromkeys(metrics, batch.targets),
            "agnostic": dict.fromkeys(metrics, self.best_predictions(batch, split=None, metric=metrics[0])),
        }

    def infer_latent(self, batch: Batch) -> Float[Tensor, "batch latent"]:
        """z of each row: the strengths of the composition that fits its examples best, 0 for all other modules."""
        teacher = self.teacher_on(batch.inputs.device)
        x, y = batch.inputs[:, : self.num_examples].split((self.input_size, self.output_size), dim=-1)
        best_latent = x.new_zeros(len(x), self.latent_size)
        best_error = x.new_full((len(x),), torch.inf)
        for composition in self.all_compositions:
            modules = torch.tensor(composition, device=x.device)
            latent = torch.zeros_like(best_latent).index_copy(1, modules, fit_strengths(teacher, modules, x, y))
            error = (apply_teacher(teacher, latent, x) - y).square().mean(dim=(1, 2))
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            best_latent = torch.where(better[:, None], latent, best_latent)
        return best_latent

    def reading(self) -> Reading:
        return InContextReading(self)

    def view(self, batch: Batch, row: int) -> TokenView:
        """The examples and queries, with the answers to the queries framed."""
        tokens = batch.inputs[row].cpu().clone()
        tokens[self.num_examples :, self.input_size :] = batch.targets[row].cpu()
        asked = range(self.num_examples, len(tokens))
        return TokenView(
            title=describe_mixture(batch.info["strengths"][row]),
            panels=[
                Panel("input x", tokens[:, : self.input_size].T.numpy()),
                Panel("output y", tokens[:, self.input_size :].T.numpy(), asked=asked),
            ],
            parts=[(f"{self.num_examples} examples", self.num_examples), (f"{len(asked)} queries", len(asked))],
        )


class InContextReading(StrengthReading):
    """Functions learned in context; codes are swapped between sequences with the same last query."""

    task: InContext

    @property
    def swap(self) -> Reading:
        return SameQueryReading(self.task)


class SameQueryReading(InContextReading):
    """Functions learned in context, all with the same last query."""

    instances = "every function with the same last query"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        task = self.task
        shared_token = task.sample("test", 0, batch_size=1, device=device).inputs[:, -1:]
        for batch in super().batches(split, num_instances, device):
            inputs, targets = batch.inputs.clone(), batch.targets.clone()
            inputs[:, -1:] = shared_token
            x = inputs[:, -1:, : task.input_size]
            targets[:, -1:] = apply_teacher(task.teacher_on(device), batch.info["strengths"], x)
            yield replace(batch, inputs=inputs, targets=targets)
