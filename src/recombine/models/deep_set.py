"""Deep set with a running sum (On Provable Length and Compositional Generalization, arXiv 2402.04875).

    h_t = Σ_{j ≤ t} φ(x_j),    y_t = ρ(h_t)

φ is an MLP with one hidden layer and a sigmoid after both of its layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from recombine.models.sequence_model import SequenceModel, SequenceModelConfig, sigmoid_layers
from recombine.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class DeepSetConfig(SequenceModelConfig):
    """A sum of features of the tokens so far."""

    kind: ClassVar[str] = "deep_set"

    def build(self, task: Task) -> DeepSet:
        return DeepSet(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            with_thoughts=task.thought_dim > 0,
        )


class DeepSet(SequenceModel):
    """Independent of the order of the tokens so far."""

    def __init__(self, config: DeepSetConfig, *, input_dim: int, output_dim: int, with_thoughts: bool = False) -> None:
        super().__init__(config, input_dim=input_dim, output_dim=output_dim, with_thoughts=with_thoughts)
        self.embed = sigmoid_layers(input_dim, config.hidden_dim, config.hidden_dim)

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        return self.embed(inputs).cumsum(dim=1)
