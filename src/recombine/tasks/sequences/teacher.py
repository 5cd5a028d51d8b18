"""Sequences labelled at every position by a random frozen teacher (On Provable Length and Compositional Generalization,
arXiv 2402.04875): does a student trained on short sequences match the teacher on long ones?

The teacher is a causal function of one of the classes in `functions.py`; its hidden states come with every batch. Tokens are
uniform in [0, 1]^d. What is held out:

- `lengths`: train on 2..10 tokens, `ood` has 11..100. A sequence of T tokens applies one and the same module T times, so its
  composition is the multiset of T copies of module 0.
- `corners`: all sequences have 10 tokens. In training Σ_t x_t stays in [0.25 T, 0.75 T] on the first half of the features
  (by rejection); in `ood` each feature takes all its tokens from [0, 0.25] or all from [0.75, 1]. Module 2i is "feature i
  is low", 2i + 1 "feature i is high": training mixes them over time, a held-out corner has one of both for each feature.
  Of all corners of the cube 64 are drawn, which is our choice.

Shorter rows are padded with zeros at the end. Padding never enters a loss or a score, and causal models never see it.
Scores are those of the last token: as functions are causal, that is the score at exactly this length. The constant that a
ratio compares with knows the position: for each position the mean output over the training distribution of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from recombine.compositions import Composition, CompositionSplit
from recombine.foundation.errors import InputError, check_positive, require
from recombine.random import Stream
from recombine.tasks.base import METRICS, Metric, Preset, Ratio, Scale, Task
from recombine.tasks.reading import Reading
from recombine.tasks.sampling import BATCH_SIZE, Batch, SplitName, cached_per_device
from recombine.tasks.sequences.functions import (
    AttentionWeights,
    Readout,
    SequenceClass,
    Weights,
    clear_padding,
    draw_weights,
    label,
    mark_real,
)
from recombine.tasks.view import Panel, TokenView

Generalisation = Literal["lengths", "corners"]
NUM_CORNERS = 64
NUM_MEAN_SEQUENCES = 4_096


@dataclass(frozen=True, kw_only=True)
class SequenceTeacher(Task):
    """Imitate a random sequence model, also on longer sequences than trained."""

    name: ClassVar[str] = "sequence_teacher"
    summary: ClassVar[str] = "imitate a random sequence model on longer sequences than trained (arXiv 2402.04875)"
    evaluation_instances: ClassVar[int] = 4_000  # of up to 100 tokens each
    max_batches_at_once: ClassVar[int] = 16
    models: ClassVar[tuple[str, ...]] = ("deep_set", "attention", "ssm", "rnn")
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS | {
        "loss_all_tokens": Metric(title="squared error, all tokens", higher_is_better=False),
    }
    column_info: ClassVar[Mapping[str, str]] = {
        "length": "number of tokens; the rest is padding",
        "hidden": "hidden state of the teacher after each token",
    }

    generalise_to: Generalisation = "lengths"
    """What is never trained: longer sequences, or features that stay low or high."""
    token_dim: int = 20
    """Number of features per token."""
    min_length: int = 2
    """Minimum length of a training sequence, where lengths are held out."""
    max_length: int = 10
    """Maximum length of a training sequence; where corners are held out, the length of every sequence."""
    longest: int = 100
    """Maximum length of a held-out sequence, where lengths are held out."""
    support: float = 1.0
    """Width of the interval around 0.5 that training tokens come from; held-out tokens come from all of [0, 1]."""
    num_sequences: int | None = None
    """Number of different training sequences (default: every sequence is new)."""

    teacher: SequenceClass = "deep_set"
    """Class of the function that labels the sequences."""
    teacher_attention: AttentionWeights = "sigmoid"
    """Attention weights of a teacher of class `attention`."""
    teacher_readout: Readout = "linear"
    """The teacher's readout from hidden state to output: one layer (limited capacity) or an MLP (higher capacity)."""
    teacher_dim: int = 20
    """Number of features of the teacher's hidden state."""
    target_dim: int = 20
    """Number of features of an output."""
    chain_of_thought: float = 0.0
    """Weight of the squared error of the hidden states in the loss. With 0 they are not supervised."""

    def __post_init__(self) -> None:
        check_positive(token_dim=self.token_dim, teacher_dim=self.teacher_dim, target_dim=self.target_dim)
        check_positive(min_length=self.min_length, max_length=self.max_length, longest=self.longest)
        if self.num_sequences is not None:
            check_positive(num_sequences=self.num_sequences)
        if self.generalise_to == "lengths":
            most = f"max_length = {self.max_length}"
            require(self.min_length <= self.max_length, "min_length", self.min_length, f"at most {most}")
            require(self.longest > self.max_length, "longest", self.longest, f"more than {most}")
        require(0 < self.support <= 1, "support", self.support, "a width above 0 and at most 1")
        require(self.chain_of_thought >= 0, "chain_of_thought", self.chain_of_thought, "a weight of at least 0")

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The paper's sizes at every scale, with fewer steps at the smaller ones. The teacher has the student's class."""
        model = model or cls.models[0]
        return Preset(
            task=cls(teacher=model) if model in cls.models else cls(),  # type: ignore[arg-type]
            model=model,
            training={
                "steps": {"tiny": 500, "small": 3_000, "paper": 10_000}[scale],
                "batch_size": 256,
                "learning_rate": 1e-3,
                "weight_decay": 0.01,
                "warmup_steps": 0,
                "final_fraction": 0.0,
                "beta2": 0.95,
            },
        )

    @property
    def input_dim(self) -> int:
        return self.token_dim

    @property
    def sequence_length(self) -> int:
        return self.longest if self.generalise_to == "lengths" else self.max_length

    @property
    def train_length(self) -> int:
        return self.max_length

    @property
    def output_dim(self) -> int:
        return self.target_dim

    @property
    def supervised_state_dim(self) -> int:
        return self.teacher_dim if self.chain_of_thought else 0

    @cached_property
    def split(self) -> CompositionSplit:
        if self.generalise_to == "lengths":
            return CompositionSplit(
                train=tuple((0,) * length for length in range(self.min_length, self.max_length + 1)),
                ood=tuple((0,) * length for length in range(self.max_length + 1, self.longest + 1)),
            )
        places = 2 * torch.arange(self.token_dim)
        high = Stream(self.name, self.seed, "corners", rows=range(NUM_CORNERS)).integers(2, self.token_dim)
        corners = sorted({tuple(corner) for corner in (places + high).tolist()})
        return CompositionSplit(train=(tuple(range(2 * self.token_dim)),), ood=tuple(corners))

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Sequences of the split with the teacher's outputs; `info` has their lengths and the teacher's hidden states."""
        if (
            self.generalise_to == "lengths"
            and (split != "train" or self.num_sequences is None)
            and (self.support == 1 or split == "ood")
        ):
            composition, lengths = self._draw_lengths(split, stream)
            x = stream.uniform_sequences(lengths, self.lengths(split)[1], self.token_dim)
        else:
            x, composition, lengths = self._draw(split, stream)
            x = clear_padding(x, lengths)  # in place, for it was drawn for this batch alone
        return self._label(split, x, composition, lengths)

    def sample_length(
        self,
        split: SplitName,
        index: int,
        length: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split with sequences of one length, which must be one of the lengths of the split."""
        stream = self.stream(split, index, batch_size=batch_size, rows=rows, device=device)
        x, composition, lengths = self._draw(split, stream)
        lengths = torch.full_like(lengths, length)
        if self.generalise_to == "lengths":
            composition = lengths - self.lengths(split)[0]
        return self._label(split, x[:, :length], composition, lengths)

    def _label(
        self,
        split: SplitName,
        x: Float[Tensor, "b t tokens"],
        composition: Int[Tensor, " b"],
        lengths: Int[Tensor, " b"],
    ) -> Batch:
        """The batch of these sequences, with the outputs and hidden states of the teacher."""
        hidden, y = self.label(x, lengths)
        modules = self.look_up_modules(split, composition)
        if self.generalise_to == "lengths":
            modules = modules[:, : x.shape[1]].contiguous()  # module 0 at every token, -1 for padding
        return Batch(x, y, modules, {"composition": composition, "length": lengths, "hidden": hidden})

    def lengths(self, split: SplitName) -> tuple[int, int]:
        """The fewest and the most tokens of a sequence of a split."""
        if self.generalise_to == "corners":
            return self.max_length, self.max_length
        return (self.max_length + 1, self.longest) if split == "ood" else (self.min_length, self.max_length)

    def _draw_lengths(self, split: SplitName, stream: Stream) -> tuple[Int[Tensor, " b"], Int[Tensor, " b"]]:
        """The number of the composition, and the length."""
        shortest, longest = self.lengths(split)
        composition = stream.integers(len(self.split.compositions(split)), 1)[:, 0]
        lengths = composition + shortest if self.generalise_to == "lengths" else torch.full_like(composition, longest)
        return composition, lengths

    def _draw(
        self, split: SplitName, stream: Stream
    ) -> tuple[Float[Tensor, "b t tokens"], Int[Tensor, " b"], Int[Tensor, " b"]]:
        """Tokens, before padding; the number of the composition; the length."""
        if split == "train" and self.num_sequences is not None:
            number = stream.integers(self.num_sequences, 1)[:, 0]
            x, composition, lengths = (column[number] for column in self._pool(stream.device))
            return x, composition, lengths
        return self._draw_new(split, stream)

    def _draw_new(self, split: SplitName, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        composition, lengths = self._draw_lengths(split, stream)
        x = stream.uniform(self.lengths(split)[1], self.token_dim)
        if split != "ood":
            x = self.narrow(x)
        if self.generalise_to == "corners" and split == "ood":
            corners = (torch.tensor(self.split.ood, device=x.device) % 2).to(x.dtype)  # not the default type
            x = x / 4 + 0.75 * corners[composition][:, None]
        elif self.generalise_to == "corners":
            x = self._keep_sums_central(x, stream)
        return x, composition, lengths

    def narrow(self, x: Tensor) -> Tensor:
        return x if self.support == 1 else 0.5 + (x - 0.5) * self.support

    def _keep_sums_central(self, x: Tensor, stream: Stream) -> Tensor:
        """Draw again where Σ_t x_t of a feature of the first half leaves the middle; a row depends on its own draws only."""
        constrained = torch.arange(self.token_dim, device=x.device) < self.token_dim // 2
        while True:
            outside = ((x.mean(dim=1) - 0.5).abs() > 0.25) & constrained
            if not outside.any():
                return x
            x = torch.where(outside[:, None], self.narrow(stream.uniform(*x.shape[1:])), x)

    @cached_per_device
    def _pool(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct training sequences."""
        rows = range(self.num_sequences or 0)
        return self._draw_new("train", Stream(self.name, self.seed, "pool", rows=rows, device=device))

    def label(
        self, x: Float[Tensor, "b t tokens"], lengths: Int[Tensor, " b"] | None = None
    ) -> tuple[Float[Tensor, "b t hidden"], Float[Tensor, "b t targets"]]:
        """The teacher's hidden states and outputs."""
        weights = self.weights_on(x.device)
        return label(self.teacher, weights, x, attention=self.teacher_attention, lengths=lengths)

    @cached_property
    def weights(self) -> Weights:
        """The teacher's weights. They depend only on its class, its sizes and the seed."""
        dims = (self.token_dim, self.teacher_dim, self.target_dim)
        return draw_weights(self.teacher, self.teacher_readout, dims=dims, seed=self.seed)

    @cached_per_device
    def weights_on(self, device: torch.device) -> Weights:
        return {part: weight.to(device) for part, weight in self.weights.items()}

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Mean squared error over real tokens; with chain of thought, that of the hidden states is added."""
        real = mark_real(batch.inputs, batch.info["length"])[..., None]
        num_tokens = batch.info["length"].sum()
        outputs, thoughts = self.read(predictions, batch)
        # targets and hidden states are 0 where there is padding, so masking the predictions is enough
        error = functional.mse_loss(outputs * real, batch.targets, reduction="sum")
        loss = error / (num_tokens * self.target_dim)
        if self.chain_of_thought:
            if thoughts is None:
                raise InputError(
                    f"predictions have {predictions.shape[-1]} features: expected {self.target_dim} outputs and "
                    f"{self.teacher_dim} hidden states, because chain_of_thought is {self.chain_of_thought}"
                )
            error = functional.mse_loss(thoughts * real, batch.info["hidden"], reduction="sum")
            loss = loss + self.chain_of_thought * error / (num_tokens * self.teacher_dim)
        return loss

    def loss_weight(self, batch: Batch) -> Tensor:
        return batch.info["length"].sum()

    def read(
        self, predictions: Tensor, batch: Batch
    ) -> tuple[Float[Tensor, "b t targets"], Float[Tensor, "b t hidden"] | None]:
        """Outputs, and hidden states if the model returns them as well."""
        wanted = (*batch.targets.shape[:2], self.target_dim)
        with_thoughts = (*wanted[:2], self.target_dim + self.teacher_dim)
        if tuple(predictions.shape) not in (wanted, with_thoughts):
            raise InputError(
                f"predictions have shape {tuple(predictions.shape)}: expected {wanted}, "
                f"or {with_thoughts} with hidden states"
            )
        thoughts = predictions[..., self.target_dim :]
        return predictions[..., : self.target_dim], thoughts if thoughts.shape[-1] else None

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """R² against the best constant and squared error at the last token, then the squared error over all tokens."""
        outputs, _ = self.read(predictions, batch)
        error = (outputs.double() - batch.targets.double()).square().mean(dim=-1)
        spread = (self.chance(batch).double() - batch.targets.double()).square().mean(dim=-1)
        last = batch.info["length"][:, None] - 1
        final_error, final_spread = error.gather(1, last)[:, 0], spread.gather(1, last)[:, 0]
        real = mark_real(batch.inputs, batch.info["length"])
        return {
            "r2": Ratio(final_spread - final_error, final_spread),
            "loss": Ratio(final_error, torch.ones_like(final_error)),
            "loss_all_tokens": Ratio((error * real).sum(dim=1), batch.info["length"].double()),
        }

    def chance(self, batch: Batch) -> Float[Tensor, "b t targets"]:
        """The best constant at each position: the mean output for tokens from the training distribution."""
        means = self.position_means[: batch.targets.shape[1]].to(batch.targets.device)
        return means.expand(len(batch), -1, -1)

    @cached_property
    def position_means(self) -> Float[Tensor, "t targets"]:
        """Mean output at each position over 4,096 sequences of training tokens."""
        total = torch.zeros(self.sequence_length, self.target_dim, dtype=torch.float64)
        for first in range(0, NUM_MEAN_SEQUENCES, 512):
            stream = Stream(self.name, self.seed, "mean target", rows=range(first, first + 512))
            x = self.narrow(stream.uniform(self.sequence_length, self.token_dim))
            total += self.label(x)[1].double().sum(dim=0)
        return (total / NUM_MEAN_SEQUENCES).float()

    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Float[Tensor, "b t targets"]:
        """The teacher's outputs, for any prior: targets are a function of the inputs, so this is exact."""
        return batch.targets

    def split_title(self, split: SplitName) -> str:
        lengths = {"test": "trained lengths", "ood": "longer sequences"}
        corners = {"test": "trained corners", "ood": "held-out corners"}
        return (lengths if self.generalise_to == "lengths" else corners).get(split, super().split_title(split))

    def split_meaning(self, split: SplitName) -> str:
        if self.generalise_to == "lengths":
            ends = {"test": (self.min_length, self.max_length), "ood": (self.max_length + 1, self.longest)}
            shortest, longest = ends.get(split, ends["test"])
            longer = "longer sequences than trained" if split == "ood" else "new sequences of the lengths trained"
            return f"{longer}, {shortest} to {longest} tokens"
        corners = {"test": "new sequences as trained", "ood": "sequences in corners of the cube that are never trained"}
        return corners.get(split, super().split_meaning(split))

    def describe(self, composition: Composition) -> str:
        if self.generalise_to == "lengths":
            return f"{sum(module >= 0 for module in composition)} tokens"
        if len(composition) == 2 * self.token_dim:
            return "every feature low and high, in turn"
        return "features " + "".join("+" if module % 2 else "−" for module in composition)

    def reading(self) -> Reading:
        return SequenceTeacherReading(self)

    def view(self, batch: Batch, row: int) -> TokenView:
        """Tokens and outputs; the outputs that the score is about are framed."""
        length = int(batch.info["length"][row])
        x, y = (values[row, :length].detach().cpu().T.numpy() for values in (batch.inputs, batch.targets))
        trained = min(length, self.max_length)
        parts = [("trained", trained), ("positions that are never trained", length - trained)]
        composition = self.describe(tuple(batch.latents[row].tolist()))
        return TokenView(
            title=f"{composition}, labelled by a teacher of class {self.teacher}",
            panels=[Panel("tokens x", x), Panel("outputs y", y, asked=range(length - 1, length))],
            parts=parts if length > trained else [(f"{length} tokens", length)],
            framed="the output that is scored; all are trained",
        )


class SequenceTeacherReading(Reading):
    """The teacher's hidden state in place of modules: decoding it is linear identification."""

    task: SequenceTeacher
    instances = "sequences of the greatest length of their split"
    labels = "the teacher's hidden state"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        length = self.task.lengths(split)[1]
        for index, first in enumerate(range(0, num_instances, BATCH_SIZE)):
            rows = range(min(BATCH_SIZE, num_instances - first))
            yield self.task.sample_length(split, index, length, batch_size=BATCH_SIZE, rows=rows, device=device)

    @property
    def module_names(self) -> tuple[str, ...]:
        return tuple(f"unit {i}" for i in range(self.task.teacher_dim))

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return batch.info["hidden"][:, -1]
