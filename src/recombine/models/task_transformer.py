"""A causal transformer with the task as its first token (SC, arXiv 2507.07207): task, x_1, x_2, ... -> y_1, y_2, ...

It differs from `transformer` in two ways: the encoding of the task and the inputs have separate dense layers, and queries
and keys are normalised before the rotary position embedding (see Henry et al. 2020 on normalising them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.layers import AttentionName
from recombine.layers.initialise import lecun_linear
from recombine.models.base import ENCODING, SAME_LENGTHS, Need
from recombine.models.transformer import Position, Transformer, TransformerConfig
from recombine.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class TaskTransformerConfig(TransformerConfig):
    """Sizes and choices of a transformer that reads the task from its first token."""

    kind: ClassVar[str] = "task_transformer"

    attention: AttentionName = "softmax"
    """Softmax, linear, HYLA, or one of the ablations of table A1."""
    num_layers: int = 4
    """Number of blocks."""
    embedding_dim: int = 256
    """Number of features of the residual stream."""
    kqv_dim: int = 256
    """Number of features of queries, keys and values, in total over all heads."""
    mlp_dim: int = 1024
    """Number of hidden units of the feed-forward network."""
    num_heads: int = 4
    """Number of heads: the dimension of the latent code."""
    position: Position = "rotary"
    """A learned bias per head and distance, rotary, or none."""
    causal: bool = True
    """Let tokens attend to earlier tokens only."""
    normalise_queries: bool = True
    """Normalise queries and keys, with a learned scale per feature of a head."""

    @property
    def label(self) -> str:
        return f"task-{self.attention}"

    @property
    def needs(self) -> tuple[Need, ...]:
        return (ENCODING, SAME_LENGTHS, *super().needs)

    def build_rotation(self) -> nn.Module | None:
        rotation = super().build_rotation()
        return QueryKeyNorm(self.kqv_dim // self.num_heads, rotation) if self.normalise_queries else rotation

    def build(self, task: Task) -> TaskTransformer:
        return TaskTransformer(
            self,
            encoding_dim=task.encoding_dim,
            x_dim=task.input_dim - task.encoding_dim,
            output_dim=task.output_dim,
            num_tokens=task.sequence_length,
        )


class TaskEmbedding(nn.Module):
    """One token for the encoding, which is the same in all tokens of a row, followed by one token per input."""

    def __init__(self, encoding_dim: int, x_dim: int, embedding_dim: int) -> None:
        super().__init__()
        self.encoding_dim = encoding_dim
        self.task = lecun_linear(encoding_dim, embedding_dim)
        self.x = lecun_linear(x_dim, embedding_dim)

    def forward(self, inputs: Float[Tensor, "b tokens features"]) -> Float[Tensor, "b tokens+1 embedding"]:
        task = self.task(inputs[:, :1, : self.encoding_dim])
        return torch.cat([task, self.x(inputs[..., self.encoding_dim :])], dim=1)


class QueryKeyNorm(nn.Module):
    """Root-mean-square norms of queries and keys, applied before the rotary embedding, if any."""

    def __init__(self, head_dim: int, turn: nn.Module | None) -> None:
        super().__init__()
        self.query, self.key = nn.RMSNorm(head_dim, eps=1e-6), nn.RMSNorm(head_dim, eps=1e-6)
        self.turn = turn

    def forward(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"]
    ) -> tuple[Float[Tensor, "b q h d"], Float[Tensor, "b k h d"]]:
        q, k = self.query(q), self.key(k)
        return (q, k) if self.turn is None else self.turn(q, k)


class TaskTransformer(Transformer):
    """Maps tokens, each the encoding of a task and an input, to one prediction per token."""

    def __init__(
        self, config: TaskTransformerConfig, *, encoding_dim: int, x_dim: int, output_dim: int, num_tokens: int
    ) -> None:
        super().__init__(
            config, input_dim=x_dim, output_dim=output_dim, sequence_length=num_tokens + 1, num_read=num_tokens
        )
        self.embed = TaskEmbedding(encoding_dim, x_dim, config.embedding_dim)
