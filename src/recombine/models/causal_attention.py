"""One head of causal attention (On Provable Length and Compositional Generalization, arXiv 2402.04875).

    h_t = Σ_{j ≤ t} a(q_t · k_j / √d) V x_j,    y_t = ρ(h_t)

with softmax weights over the prefix, or sigmoid, linear or relu weights divided by t. There is no residual stream. Positions
are optional: a learned vector per position is added to the tokens, up to the longest sequence of the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import InputError, check_choice
from recombine.models.sequence_model import SequenceModel, SequenceModelConfig, normal_parameter
from recombine.tasks.base import Task
from recombine.tasks.sequences.functions import AttentionWeights, attention_weights

TokenPosition = Literal["none", "learned"]


@dataclass(frozen=True, kw_only=True)
class CausalAttentionConfig(SequenceModelConfig):
    """A weighted sum of the tokens so far, weighted by the last one as query."""

    kind: ClassVar[str] = "attention"

    attention: AttentionWeights = "sigmoid"
    """How attention weights are computed from scores."""
    position: TokenPosition = "none"
    """Add a learned vector per position to the tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attention", self.attention, get_args(AttentionWeights))
        check_choice("position", self.position, get_args(TokenPosition))

    @property
    def label(self) -> str:
        positions = "" if self.position == "none" else "-positions"
        return f"{self.attention}-{super().label}{positions}"

    def build(self, task: Task) -> CausalAttention:
        return CausalAttention(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            with_thoughts=task.thought_dim > 0,
            sequence_length=task.sequence_length,
        )


class CausalAttention(SequenceModel):
    """Queries, keys and values are linear in the tokens."""

    def __init__(
        self,
        config: CausalAttentionConfig,
        *,
        input_dim: int,
        output_dim: int,
        sequence_length: int,
        with_thoughts: bool = False,
    ) -> None:
        super().__init__(config, input_dim=input_dim, output_dim=output_dim, with_thoughts=with_thoughts)
        self.weighing = config.attention
        self.query, self.key, self.value = (normal_parameter(config.hidden_dim, input_dim) for _ in range(3))
        self.position: nn.Parameter | None = None
        if config.position == "learned":
            self.position = nn.Parameter(torch.zeros(sequence_length, input_dim))

    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        x = inputs
        if self.position is not None:
            if x.shape[1] > len(self.position):
                raise InputError(f"inputs have {x.shape[1]} tokens: expected at most {len(self.position)} positions")
            x = x + self.position[: x.shape[1]]
        q, k, v = (x @ weight.T for weight in (self.query, self.key, self.value))
        return attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), self.weighing) @ v
