"""A linear hypernetwork: the encoding of a task generates the weights of a network for the input (SC, arXiv 2507.07207).

    W1, b1, W2, b2 = dense(layer_norm(code));   y = relu(x W1 + b1) W2 + b2

If the code is linear in a teacher's modules, this has the form of the teacher: modules that were learned separately add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import check_positive
from recombine.layers.initialise import lecun_linear
from recombine.models.base import ENCODING, ModelConfig, Need, Site
from recombine.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class HypernetworkConfig(ModelConfig):
    """Size of the generated network."""

    kind: ClassVar[str] = "hypernetwork"

    hidden_dim: int = 256
    """Number of hidden units of the generated network."""

    def __post_init__(self) -> None:
        check_positive(hidden_dim=self.hidden_dim)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (ENCODING,)

    def build(self, task: Task) -> Hypernetwork:
        x_dim = task.input_dim - task.encoding_dim
        return Hypernetwork(task.encoding_dim, x_dim, self.hidden_dim, task.output_dim)


class Hypernetwork(nn.Module):
    """Each token is the encoding of a task and an input. The encoding is read from the first token; all have the same."""

    probe_sites: ClassVar[tuple[Site, ...]] = (Site("code", "norm"), Site("hidden.0", "activation"))

    def __init__(self, encoding_dim: int, x_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.encoding_dim = encoding_dim
        self.shapes = ((x_dim, hidden_dim), (1, hidden_dim), (hidden_dim, output_dim), (1, output_dim))
        self.norm = nn.LayerNorm(encoding_dim, eps=1e-6)
        self.generate = lecun_linear(encoding_dim, sum(rows * columns for rows, columns in self.shapes))
        self.activation = nn.ReLU()
        with torch.no_grad():
            # a normalised code generates weights of variance 1 here: scale matrices to variance 1 / fan_in, biases to 0
            parts = zip(self.generate.weight.split(self.sizes), self.shapes, (False, True) * 2, strict=True)
            for part, (fan_in, _), bias in parts:
                part.mul_(0.0 if bias else fan_in**-0.5)

    @property
    def sizes(self) -> list[int]:
        return [rows * columns for rows, columns in self.shapes]

    def forward(self, inputs: Float[Tensor, "b tokens features"]) -> Float[Tensor, "b tokens predictions"]:
        code, x = inputs[:, 0, : self.encoding_dim], inputs[..., self.encoding_dim :]
        made = self.generate(self.norm(code)).split(self.sizes, dim=-1)
        first, first_bias, second, second_bias = (
            part.unflatten(-1, shape) for part, shape in zip(made, self.shapes, strict=True)
        )
        hidden = self.activation(torch.baddbmm(first_bias, x, first))
        return torch.baddbmm(second_bias, hidden, second)
