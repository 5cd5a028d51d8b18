"""Causal sequence models (On Provable Length and Compositional Generalization, arXiv 2402.04875).

    h_1 .. h_T = represent(x_1 .. x_T),    y_t = ρ(h_t)

Hidden states at every position, and one readout for all of them. Limited capacity means that ρ is one layer (`linear`), higher
capacity that it is an MLP (`mlp`); a sigmoid follows every layer. Initial weights are N(0, 0.6²), biases 0. If a task supervises
the intermediate values (chain of thought), a model returns its hidden states after its outputs.

    deep_set     h_t = Σ_{j ≤ t} φ(x_j)             φ is an MLP with one hidden layer and a sigmoid after both of its layers
    ssm          h_t = Λ h_{t-1} + B x_t            a state-space model
    rnn          h_t = σ(Λ h_{t-1} + B x_t)
    attention    h_t = Σ_{j ≤ t} a(q_t · k_j / √d) V x_j

The linear recurrence is an associative scan: maps h -> Λ^n h + u compose to maps of the same form, so after step i every
h_t holds the sum over its last 2^i inputs, and log₂ T steps do the work of T (Hillis & Steele 1986). Λ is any matrix
(`dense`), or diagonal with pairs of eigenvalues r exp(±iθ) (`diagonal`), and h alternates real and imaginary parts.

Attention has one head, with softmax weights over the prefix, or sigmoid, linear or relu weights divided by t. There is no
residual stream. Positions are optional: a learned vector per position is added to the tokens, up to the longest sequence of
the task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn import functional

from recombine.foundation.errors import InputError, check_positive
from recombine.models.base import ModelConfig, Need, Site
from recombine.tasks.base import Task
from recombine.tasks.sequences.functions import WEIGHT_DEVIATION, AttentionWeights, Readout, attention_weights


@dataclass(frozen=True, kw_only=True)
class SequenceModelConfig(ModelConfig):
    """Sizes of a causal sequence model; the task gives those of its inputs and outputs."""

    model: ClassVar[type[SequenceModel]]

    hidden_dim: int = 20
    """Number of features of a hidden state."""
    readout: Readout = "linear"
    """Readout from hidden state to output: one layer (limited capacity) or an MLP (higher capacity)."""

    def __post_init__(self) -> None:
        check_positive(hidden_dim=self.hidden_dim)

    @property
    def label(self) -> str:
        return self.kind if self.readout == "linear" else f"{self.kind}-{self.readout}"

    @property
    def needs(self) -> tuple[Need, ...]:
        hidden_states = Need(
            lambda task: task.supervised_state_dim in (0, self.hidden_dim),
            "supervises {task.supervised_state_dim} hidden states",
            f"that supervises {self.hidden_dim}, the hidden_dim of the model, or none",
        )
        return (hidden_states,)

    def build(self, task: Task) -> SequenceModel:
        return self.model(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            sequence_length=task.sequence_length,
            with_thoughts=task.supervised_state_dim > 0,
        )


class SequenceModel(nn.Module, ABC):
    """Outputs (b, t, output_dim) for tokens (b, t, input_dim), followed by the hidden states if `with_thoughts`."""

    probe_sites: ClassVar[tuple[Site, ...]] = (Site("hidden", "readout", "input"),)

    def __init__(
        self,
        config: Any,
        *,
        input_dim: int,
        output_dim: int,
        sequence_length: int,
        with_thoughts: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.input_dim = input_dim
        self.with_thoughts = with_thoughts
        size = config.hidden_dim
        sizes = (size, output_dim) if config.readout == "linear" else (size, size, output_dim)
        self.readout = sigmoid_layers(*sizes)
        self.build_layers(config, sequence_length)

    @abstractmethod
    def build_layers(self, config: Any, sequence_length: int) -> None:
        """Make the parameters of `represent`."""

    @abstractmethod
    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        """Hidden states; none depends on a later token."""

    def forward(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t outputs"]:
        self.check_inputs(inputs)
        hidden = self.represent(inputs)
        outputs = self.readout(hidden)
        return torch.cat([outputs, hidden], dim=-1) if self.with_thoughts else outputs

    def check_inputs(self, inputs: Float[Tensor, "b t features"]) -> None:
        if inputs.ndim != 3 or inputs.shape[1] == 0 or inputs.shape[2] != self.input_dim:
            raise InputError(
                f"inputs have shape {tuple(inputs.shape)}: expected (batch, tokens, {self.input_dim}) "
                "with at least one token"
            )


def sigmoid_layers(*sizes: int) -> nn.Sequential:
    """Dense layers of these sizes with a sigmoid after each; layer i is called i."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(len(sizes) - 1):
        layer = nn.Linear(sizes[i], sizes[i + 1])
        nn.init.normal_(layer.weight, std=WEIGHT_DEVIATION)
        nn.init.zeros_(layer.bias)
        layers[str(i)] = layer
        layers[f"sigmoid{i}"] = nn.Sigmoid()
    return nn.Sequential(layers)


def normal_parameter(*shape: int) -> nn.Parameter:
    """A weight initialised to N(0, 0.6²)."""
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=WEIGHT_DEVIATION))


class DeepSet(SequenceModel):
    """Independent of the order of the tokens so far."""

    def build_layers(self, config: DeepSetConfig, sequence_length: int) -> None:
        self.embed = sigmoid_layers(self.input_dim, config.hidden_dim, config.hidden_dim)

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        return self.embed(inputs).cumsum(dim=1)


@dataclass(frozen=True, kw_only=True)
class DeepSetConfig(SequenceModelConfig):
    """A sum of features of the tokens so far."""

    kind: ClassVar[str] = "deep_set"
    model: ClassVar[type[SequenceModel]] = DeepSet


Recurrence = Literal["dense", "diagonal"]


class StateSpaceModel(SequenceModel):
    """Computes all positions in parallel, by a scan."""

    def build_layers(self, config: StateSpaceConfig, sequence_length: int) -> None:
        size = config.hidden_dim
        self.input = normal_parameter(size, self.input_dim)
        self.recurrence: nn.Parameter | None = None
        if config.recurrence == "dense":
            self.recurrence = rotation_parameter(size)
        else:
            self.log_radius = nn.Parameter(torch.zeros(size // 2))
            self.angle = nn.Parameter(torch.rand(size // 2) * torch.pi)

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        driven = inputs @ self.input.T
        if self.recurrence is not None:
            return scan_dense(self.recurrence, driven)
        modes = torch.view_as_complex(driven.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(scan_diagonal(self.eigenvalues, modes)).flatten(-2)

    @property
    def eigenvalues(self) -> Complex[Tensor, " modes"]:
        """One eigenvalue of each pair."""
        return torch.polar(self.log_radius.exp(), self.angle)


@dataclass(frozen=True, kw_only=True)
class StateSpaceConfig(SequenceModelConfig):
    """A linear recurrence."""

    kind: ClassVar[str] = "ssm"
    model: ClassVar[type[SequenceModel]] = StateSpaceModel

    recurrence: Recurrence = "dense"
    """A full matrix, or pairs of complex eigenvalues."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recurrence == "diagonal" and self.hidden_dim % 2:
            raise InputError(f"hidden_dim is {self.hidden_dim}: expected an even number, for pairs of eigenvalues")

    @property
    def label(self) -> str:
        return super().label if self.recurrence == "dense" else f"{self.recurrence}-{super().label}"


class RecurrentNetwork(SequenceModel):
    """Computes one position after the other."""

    def build_layers(self, config: RecurrentConfig, sequence_length: int) -> None:
        self.input = normal_parameter(config.hidden_dim, self.input_dim)
        self.recurrence = rotation_parameter(config.hidden_dim)

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        transition = self.recurrence.T
        hidden: list[Tensor] = []
        for driven in (inputs @ self.input.T).unbind(dim=1):
            hidden.append(torch.sigmoid(torch.addmm(driven, hidden[-1], transition) if hidden else driven))
        return torch.stack(hidden, dim=1)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(SequenceModelConfig):
    """A recurrence with a sigmoid."""

    kind: ClassVar[str] = "rnn"
    model: ClassVar[type[SequenceModel]] = RecurrentNetwork


def rotation_parameter(size: int) -> nn.Parameter:
    """A random rotation, with determinant 1 like the teacher's.

    A change of basis keeps the determinant, so for a student that starts as a reflection Λ must become singular on the way.
    """
    matrix = nn.init.orthogonal_(torch.empty(size, size))
    matrix[:, 0] *= torch.linalg.det(matrix).sign()
    return nn.Parameter(matrix)


def scan_dense(matrix: Float[Tensor, "n n"], driven: Float[Tensor, "b t n"]) -> Float[Tensor, "b t n"]:
    """h_t = matrix · h_{t-1} + driven_t for all t."""
    return _scan(driven, matrix, lambda h, power: h @ power.T, lambda power: power @ power)


def scan_diagonal(eigenvalues: Complex[Tensor, " n"], driven: Complex[Tensor, "b t n"]) -> Complex[Tensor, "b t n"]:
    """The same for a diagonal matrix."""
    return _scan(driven, eigenvalues, lambda h, power: h * power, lambda power: power * power)


def _scan(
    driven: Tensor, power: Tensor, apply: Callable[[Tensor, Tensor], Tensor], square: Callable[[Tensor], Tensor]
) -> Tensor:
    hidden, reach = driven, 1
    while reach < driven.shape[1]:
        if reach > 1:
            power = square(power)
        hidden = hidden + functional.pad(apply(hidden[:, :-reach], power), (0, 0, reach, 0))
        reach *= 2
    return hidden


TokenPosition = Literal["none", "learned"]


class CausalAttention(SequenceModel):
    """Queries, keys and values are linear in the tokens."""

    def build_layers(self, config: CausalAttentionConfig, sequence_length: int) -> None:
        self.weighing = config.attention
        self.query, self.key, self.value = (normal_parameter(config.hidden_dim, self.input_dim) for _ in range(3))
        self.position: nn.Parameter | None = None
        if config.position == "learned":
            self.position = nn.Parameter(torch.zeros(sequence_length, self.input_dim))

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        x = inputs
        if self.position is not None:
            if x.shape[1] > len(self.position):
                raise InputError(f"inputs have {x.shape[1]} tokens: expected at most {len(self.position)} positions")
            x = x + self.position[: x.shape[1]]
        q, k, v = (x @ weight.T for weight in (self.query, self.key, self.value))
        return attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), self.weighing) @ v


@dataclass(frozen=True, kw_only=True)
class CausalAttentionConfig(SequenceModelConfig):
    """A weighted sum of the tokens so far, weighted by the last one as query."""

    kind: ClassVar[str] = "attention"
    model: ClassVar[type[SequenceModel]] = CausalAttention

    attention: AttentionWeights = "sigmoid"
    """How attention weights are computed from scores."""
    position: TokenPosition = "none"
    """Add a learned vector per position to the tokens."""

    @property
    def label(self) -> str:
        positions = "" if self.position == "none" else "-positions"
        return f"{self.attention}-{super().label}{positions}"
