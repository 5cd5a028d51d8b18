"""Sequences labelled at every position by a random frozen teacher (On Provable Length and Compositional Generalization,
arXiv 2402.04875): does a student trained on short sequences follow the teacher on long ones?

Tokens are uniform in [0, 1]^d. The teacher is a causal function of one of the classes in `sequence_functions`; its
hidden states come with every batch. What is held out:

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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from recombine.compositions import Composition, CompositionSplit
from recombine.errors import InputError, check_choice, check_positive
from recombine.tables import Table
from recombine.tasks.base import (
    METRICS,
    Batch,
    Metric,
    Preset,
    Ratio,
    Scale,
    SplitName,
    Task,
)
from recombine.tasks.per_device import once_per_device
from recombine.tasks.reading import Reading
from recombine.tasks.sequences.functions import (
    AttentionWeights,
    Readout,
    SequenceClass,
    Weights,
    draw_weights,
    read_out,
    represent,
)
from recombine.tasks.stream import Stream

Generalisation = Literal["lengths", "corners"]
NUM_CORNERS = 64
NUM_STILLEST = 5
NUM_SHOWN = 12  # tokens
NUM_MEAN_SEQUENCES = 4_096


@dataclass(frozen=True, kw_only=True)
class SequenceTeacher(Task):
    """Imitate a random sequence model, and go on where training sequences end."""

    name: ClassVar[str] = "sequence_teacher"
    summary: ClassVar[str] = "imitate a random sequence model on longer sequences than trained (LG)"
    evaluation_instances: ClassVar[int] = 4_000  # of up to 100 tokens each
    max_batches_at_once: ClassVar[int] = 4
    models: ClassVar[tuple[str, ...]] = ("deep_set", "attention", "ssm", "rnn")
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS | {
        "loss_all_tokens": Metric(title="squared error, all tokens", higher_is_better=False),
    }

    teacher: SequenceClass = "deep_set"
    """Class of the function that labels the sequences."""
    teacher_attention: AttentionWeights = "sigmoid"
    """How a teacher of class `attention` weighs its keys."""
    teacher_readout: Readout = "linear"
    """From hidden state to output: one layer (limited capacity) or an MLP (higher capacity)."""
    generalise_to: Generalisation = "lengths"
    """What is never trained: longer sequences, or features that stay low or high."""
    token_dim: int = 20
    """Features of a token."""
    teacher_dim: int = 20
    """Features of the teacher's hidden state."""
    target_dim: int = 20
    """Features of an output."""
    min_length: int = 2
    """Fewest tokens of a training sequence, where lengths are held out."""
    max_length: int = 10
    """Most tokens of a training sequence; where corners are held out, the tokens of every sequence."""
    longest: int = 100
    """Most tokens of a held-out sequence, where lengths are held out."""
    support: float = 1.0
    """Width of the interval around 0.5 that training tokens come from; held-out tokens come from all of [0, 1]."""
    num_sequences: int | None = None
    """Distinct training sequences; without a number every sequence is new."""
    chain_of_thought: float = 0.0
    """Weight of the squared error of the hidden states in the loss; 0 leaves them unsupervised."""

    def __post_init__(self) -> None:
        check_choice("teacher", self.teacher, get_args(SequenceClass))
        check_choice("attention", self.teacher_attention, get_args(AttentionWeights))
        check_choice("readout", self.teacher_readout, get_args(Readout))
        check_choice("generalise_to", self.generalise_to, get_args(Generalisation))
        check_positive(token_dim=self.token_dim, teacher_dim=self.teacher_dim, target_dim=self.target_dim)
        check_positive(min_length=self.min_length, max_length=self.max_length, longest=self.longest)
        if self.num_sequences is not None:
            check_positive(num_sequences=self.num_sequences)
        if self.generalise_to == "lengths" and self.min_length > self.max_length:
            raise InputError(f"min_length is {self.min_length}: expected at most max_length = {self.max_length}")
        if self.generalise_to == "lengths" and self.longest <= self.max_length:
            raise InputError(f"longest is {self.longest}: expected more than max_length = {self.max_length}")
        if not 0 < self.support <= 1:
            raise InputError(f"support is {self.support}: expected a width above 0 and at most 1")
        if not 0 <= self.chain_of_thought < math.inf:
            raise InputError(f"chain_of_thought is {self.chain_of_thought}: expected a finite weight of at least 0")

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """The paper's sizes at every scale, with fewer steps at the smaller ones; the teacher is of the student's class."""
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
    def output_dim(self) -> int:
        return self.target_dim

    @property
    def sequence_length(self) -> int:
        return self.longest if self.generalise_to == "lengths" else self.max_length

    @property
    def train_length(self) -> int:
        return self.max_length

    @property
    def thought_dim(self) -> int:
        return self.teacher_dim if self.chain_of_thought else 0

    @property
    def num_read(self) -> int:
        return self.sequence_length

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
        return self._label(split, *self._draw_tokens(split, stream))

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
        shortest, longest = self.lengths(split)
        if not shortest <= length <= longest:
            raise InputError(f"length is {length}: expected {shortest} to {longest}, the lengths of {split!r}")
        stream = self.stream(split, index, batch_size=batch_size, rows=rows, device=device)
        x, composition, lengths = self._draw_tokens(split, stream)
        lengths = torch.full_like(lengths, length)
        if self.generalise_to == "lengths":
            composition = lengths - shortest
        return self._label(split, x[:, :length], composition, lengths)

    def _draw_tokens(self, split: SplitName, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, before padding; the number of the composition; the length."""
        if split == "train" and self.num_sequences is not None:
            number = stream.integers(self.num_sequences, 1)[:, 0]
            x, composition, lengths = (column[number] for column in self._pool(stream.device))
            return x, composition, lengths
        return self._draw(split, stream)

    def _label(
        self,
        split: SplitName,
        x: Float[Tensor, "b t tokens"],
        composition: Int[Tensor, " b"],
        lengths: Int[Tensor, " b"],
    ) -> Batch:
        """The batch of these sequences: padding set to 0, and the outputs and hidden states of the teacher."""
        real = mark_real(x, lengths)
        is_real = real[..., None]
        x = x.mul_(is_real)  # drawn for this batch alone, and so are the outputs of the teacher
        hidden, y = self.label(x)
        info = {"composition": composition, "length": lengths, "hidden": hidden.mul_(is_real)}
        return Batch(x, y.mul_(is_real), self._modules(split, composition, real), info)

    def lengths(self, split: SplitName) -> tuple[int, int]:
        """The fewest and the most tokens of a sequence of a split."""
        if self.generalise_to == "corners":
            return self.max_length, self.max_length
        return (self.max_length + 1, self.longest) if split == "ood" else (self.min_length, self.max_length)

    def _draw(self, split: SplitName, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, before padding; the number of the composition; the length."""
        shortest, longest = self.lengths(split)
        composition = stream.integers(len(self.split.compositions(split)), 1)[:, 0]
        lengths = composition + shortest if self.generalise_to == "lengths" else torch.full_like(composition, longest)
        x = stream.uniform(longest, self.token_dim)
        if split != "ood":
            x = self._narrow(x)
        if self.generalise_to == "corners" and split == "ood":
            corners = torch.tensor(self.split.ood, device=x.device) % 2
            x = x / 4 + 0.75 * corners[composition][:, None]
        elif self.generalise_to == "corners":
            x = self._keep_sums_central(x, stream)
        return x, composition, lengths

    def _narrow(self, x: Tensor) -> Tensor:
        return x if self.support == 1 else 0.5 + (x - 0.5) * self.support

    def _keep_sums_central(self, x: Tensor, stream: Stream) -> Tensor:
        """Draw again where Σ_t x_t of a feature of the first half leaves the middle; a row depends on its own draws only."""
        constrained = torch.arange(self.token_dim, device=x.device) < self.token_dim // 2
        while True:
            outside = ((x.mean(dim=1) - 0.5).abs() > 0.25) & constrained
            if not outside.any():
                return x
            x = torch.where(outside[:, None], self._narrow(stream.uniform(*x.shape[1:])), x)

    def _modules(self, split: SplitName, composition: Tensor, real: Tensor) -> Int[Tensor, "batch size"]:
        if self.generalise_to == "lengths":
            return real.long() - 1  # module 0 at every token, -1 for padding
        return torch.tensor(self.split.compositions(split), device=real.device)[composition]

    @once_per_device
    def _pool(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct training sequences."""
        rows = range(self.num_sequences or 0)
        return self._draw("train", Stream(self.name, self.seed, "pool", rows=rows, device=device))

    def label(self, x: Float[Tensor, "b t tokens"]) -> tuple[Float[Tensor, "b t hidden"], Float[Tensor, "b t targets"]]:
        """The teacher's hidden states and outputs."""
        if x.ndim != 3 or x.shape[1] == 0 or x.shape[2] != self.token_dim:
            raise InputError(
                f"tokens have shape {tuple(x.shape)}: expected (rows, tokens, {self.token_dim}) with at least one token"
            )
        weights = self.weights_on(x.device)
        hidden = represent(self.teacher, weights, x, attention=self.teacher_attention)
        return hidden, read_out(weights, hidden)

    @cached_property
    def weights(self) -> Weights:
        """Those of the teacher: they depend on its class, sizes and the seed, and on nothing else."""
        return draw_weights(
            self.teacher,
            self.teacher_readout,
            token_dim=self.token_dim,
            hidden_dim=self.teacher_dim,
            target_dim=self.target_dim,
            seed=self.seed,
        )

    @once_per_device
    def weights_on(self, device: torch.device) -> Weights:
        return {part: each.to(device) for part, each in self.weights.items()}

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

    def read(
        self, predictions: Tensor, batch: Batch
    ) -> tuple[Float[Tensor, "b t targets"], Float[Tensor, "b t hidden"] | None]:
        """Outputs, and the hidden states where a model gives them as well."""
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
        """At the last token, R² against the best constant and the squared error; then the error over all tokens."""
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
        """The best constant of each position: its mean output in training, had it been trained."""
        means = self.position_means[: batch.targets.shape[1]].to(batch.targets.device)
        return means.expand(len(batch), -1, -1)

    @cached_property
    def position_means(self) -> Float[Tensor, "t targets"]:
        """Mean output at each position over 4,096 sequences of training tokens."""
        total = torch.zeros(self.sequence_length, self.target_dim, dtype=torch.float64)
        for first in range(0, NUM_MEAN_SEQUENCES, 512):
            stream = Stream(self.name, self.seed, "mean target", rows=range(first, first + 512))
            x = self._narrow(stream.uniform(self.sequence_length, self.token_dim))
            total += self.label(x)[1].double().sum(dim=0)
        return (total / NUM_MEAN_SEQUENCES).float()

    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Float[Tensor, "b t targets"]:
        """The teacher itself, whatever the prior: targets are a function of the inputs, so this is exact."""
        return batch.targets

    def tables(self, num_instances: int) -> list[Table]:
        """Outputs that the teacher's sigmoids hold still in training: there, training does not say what comes later."""
        values = {}
        for split in ("test", "ood"):
            batch = self.sample(split, 0, batch_size=num_instances)
            real = mark_real(batch.inputs, batch.info["length"])
            values[split] = batch.targets[real], batch.info["hidden"][real]
        trained, held_out = (outputs.std(dim=0) for outputs, _ in values.values())
        stillest = trained.argsort()[:NUM_STILLEST].tolist()
        larger = values["test"][1].var(dim=0).mean() / trained.square().mean()
        note = (
            f"the median output deviates by {trained.median():.3f} in training; what stands still is not learned; "
            f"the variance of hidden states is {larger:,.0f} times that of outputs, to which chain of thought adds it"
        )
        rows = tuple((number, trained[number].item(), held_out[number].item()) for number in stillest)
        columns = ("output", "deviation, trained", "deviation, held out")
        return [
            Table(title="outputs of the teacher that vary least in training", columns=columns, rows=rows, note=note)
        ]

    def reading(self) -> Reading:
        from recombine.tasks.sequences.reading import SequenceTeacherReading

        return SequenceTeacherReading(self)

    def describe(self, composition: Composition) -> str:
        if self.generalise_to == "lengths":
            return f"{sum(module >= 0 for module in composition)} tokens"
        if len(composition) == 2 * self.token_dim:
            return "every feature low and high, in turn"
        return "features " + "".join("+" if module % 2 else "−" for module in composition)

    def render(self, batch: Batch, row: int) -> str:
        length = int(batch.info["length"][row])
        lines = [f"{self.describe(tuple(batch.latents[row].tolist()))}, labelled by a teacher of class {self.teacher}"]
        shown = range(length) if length <= NUM_SHOWN else [*range(NUM_SHOWN - 2), *range(length - 2, length)]
        for t in shown:
            if t == length - 2 and length > NUM_SHOWN:
                lines.append("   …")
            x, y = (_shorten(each[row, t].tolist()) for each in (batch.inputs, batch.targets))
            lines.append(f"{t + 1:>4}  x {x}   y {y}")
        return "\n".join(lines)


def mark_real(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Bool[Tensor, "b t"]:
    """True for tokens, False for padding."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def _shorten(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values[:5]) + (" …" if len(values) > 5 else "")
