"""State-space model and recurrent network (On Provable Length and Compositional Generalization, arXiv 2402.04875).

    ssm    h_t = Λ h_{t-1} + B x_t        rnn    h_t = σ(Λ h_{t-1} + B x_t)        y_t = ρ(h_t)

The linear recurrence is an associative scan: maps h -> Λ^n h + u compose to maps of the same form, so after step i every
h_t holds the sum over its last 2^i inputs, and log₂ T steps do the work of T (Hillis & Steele 1986). Λ is any matrix
(`dense`), or diagonal with pairs of eigenvalues r exp(±iθ) (`diagonal`), and h holds real and imaginary parts in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn import functional

from recombine.errors import InputError, check_choice
from recombine.models.sequence_model import SequenceModel, SequenceModelConfig, normal_parameter
from recombine.tasks.base import Task

Recurrence = Literal["dense", "diagonal"]


@dataclass(frozen=True, kw_only=True)
class StateSpaceConfig(SequenceModelConfig):
    """A linear recurrence."""

    kind: ClassVar[str] = "ssm"

    recurrence: Recurrence = "dense"
    """A full matrix, or pairs of complex eigenvalues."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("recurrence", self.recurrence, get_args(Recurrence))
        if self.recurrence == "diagonal" and self.hidden_dim % 2:
            raise InputError(f"hidden_dim is {self.hidden_dim}: expected an even number, for pairs of eigenvalues")

    @property
    def label(self) -> str:
        return super().label if self.recurrence == "dense" else f"{self.recurrence}-{super().label}"

    def build(self, task: Task) -> StateSpaceModel:
        return StateSpaceModel(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            with_thoughts=task.thought_dim > 0,
        )


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(SequenceModelConfig):
    """A recurrence with a sigmoid."""

    kind: ClassVar[str] = "rnn"

    def build(self, task: Task) -> RecurrentNetwork:
        return RecurrentNetwork(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            with_thoughts=task.thought_dim > 0,
        )


class StateSpaceModel(SequenceModel):
    """Computes all positions in parallel, by a scan."""

    def __init__(
        self, config: StateSpaceConfig, *, input_dim: int, output_dim: int, with_thoughts: bool = False
    ) -> None:
        super().__init__(config, input_dim=input_dim, output_dim=output_dim, with_thoughts=with_thoughts)
        size = config.hidden_dim
        self.input = normal_parameter(size, input_dim)
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


class RecurrentNetwork(SequenceModel):
    """Computes one position after the other."""

    def __init__(
        self, config: RecurrentConfig, *, input_dim: int, output_dim: int, with_thoughts: bool = False
    ) -> None:
        super().__init__(config, input_dim=input_dim, output_dim=output_dim, with_thoughts=with_thoughts)
        self.input = normal_parameter(config.hidden_dim, input_dim)
        self.recurrence = rotation_parameter(config.hidden_dim)

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        transition = self.recurrence.T
        hidden: list[Tensor] = []
        for driven in (inputs @ self.input.T).unbind(dim=1):
            hidden.append(torch.sigmoid(torch.addmm(driven, hidden[-1], transition) if hidden else driven))
        return torch.stack(hidden, dim=1)


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
