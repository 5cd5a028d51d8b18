"""A multilayer perceptron on each token: h = relu(W h + b), num_layers times, then one dense layer (SC, arXiv 2507.07207).

Each token is a complete input, such as the encoding of a task followed by x; tokens do not see each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.layer import lecun_linear
from recombine.foundation.errors import check_positive
from recombine.models.base import ModelConfig, Site
from recombine.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class MLPConfig(ModelConfig):
    """Sizes of a multilayer perceptron."""

    kind: ClassVar[str] = "mlp"

    num_layers: int = 4
    """Number of hidden layers."""
    hidden_dim: int = 1024
    """Number of units per hidden layer."""

    def __post_init__(self) -> None:
        check_positive(num_layers=self.num_layers, hidden_dim=self.hidden_dim)

    @property
    def label(self) -> str:
        return f"mlp-{self.num_layers}x{self.hidden_dim}"

    def build(self, task: Task) -> MultilayerPerceptron:
        return MultilayerPerceptron(task.input_dim, [self.hidden_dim] * self.num_layers, task.output_dim)


class MultilayerPerceptron(nn.Module):
    """Maps features to predictions, with any leading dimensions."""

    def __init__(self, input_dim: int, hidden_dims: list[int], output_dim: int) -> None:
        super().__init__()
        sizes = [input_dim, *hidden_dims]
        self.layers = nn.ModuleList(
            nn.Sequential(lecun_linear(fan_in, fan_out), nn.ReLU()) for fan_in, fan_out in pairwise(sizes)
        )
        self.output = lecun_linear(sizes[-1], output_dim)

    @property
    def dense_layers(self) -> list[nn.Linear]:
        """The hidden layers without their ReLUs, and the output layer."""
        return [module for module in self.modules() if isinstance(module, nn.Linear)]

    @property
    def probe_sites(self) -> tuple[Site, ...]:
        """Each hidden layer, after its ReLU."""
        return tuple(Site(f"hidden.{i}", f"layers.{i}") for i in range(len(self.layers)))

    def forward(self, inputs: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch predictions"]:
        for layer in self.layers:
            inputs = layer(inputs)
        return self.output(inputs)
