"""The transformer of all in-context tasks (Attention as a Hypernetwork, arXiv 2406.05816, appendix C).

    x = x + attention(norm(x));  x = x + feedforward(norm(x));  prediction = dense(norm(x))

Pre-norm blocks between a dense input and a dense output layer. Each layer has its own table of relative position
biases. Only the last `num_read` tokens are read as predictions, so the last block computes queries, output projection and
feed-forward for these alone: the same numbers, for less work.

A causal transformer with the task as its first token (SC, arXiv 2507.07207): task, x_1, x_2, ... -> y_1, y_2, ...

It differs from `transformer` in two ways: the encoding of the task and the inputs have separate dense layers, and queries
and keys are normalised before the rotary position embedding (see Henry et al. 2020 on normalising them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.definition import CodeMap
from recombine.attention.dense import lecun_linear
from recombine.attention.dropout import DropoutForm
from recombine.attention.layer import ATTENTIONS, Attention, AttentionName
from recombine.attention.position import RelativeBias, Rotary
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.models.base import ENCODING, HIDDEN_ANSWERS, SAME_LENGTHS, ModelConfig, Need, Site
from recombine.models.layers import FEEDFORWARDS, ResidualNorm, build_feedforward
from recombine.tasks.base import Task

Position = Literal["relative", "rotary", "none"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """Sizes and choices of a transformer; the task gives the sizes of its input and output."""

    kind: ClassVar[str] = "transformer"

    attention: AttentionName = "hyla"
    """Softmax, linear, HYLA, or one of the ablations of table A1."""
    num_layers: int = 2
    """Number of blocks."""
    embedding_dim: int = 128
    """Number of features of the residual stream."""
    kqv_dim: int = 16
    """Number of features of queries, keys and values, in total over all heads."""
    mlp_dim: int = 256
    """Number of hidden units of the feed-forward network."""
    num_heads: int = 8
    """Number of heads: the dimension of the latent code."""
    feedforward: Literal["mlp", "swiglu", "mixture_of_experts"] = "mlp"
    """Feed-forward layer of a block."""
    position: Position = "relative"
    """A learned bias per head and distance, rotary, or none."""
    causal: bool = False
    """Let tokens attend to earlier tokens only."""
    attention_dropout: float = 0.0
    """Fraction of latent codes dropped in training (0.1 in the authors' release of HYLA)."""
    attention_dropout_form: DropoutForm = "pairs"
    """`pairs`: one mask over (query, key) for all rows and heads, as in that release; `elements`: independent masks."""

    def __post_init__(self) -> None:
        check_choice("attention", self.attention, ATTENTIONS)
        check_choice("feedforward", self.feedforward, FEEDFORWARDS)
        check_choice("position", self.position, get_args(Position))
        check_positive(num_layers=self.num_layers, embedding_dim=self.embedding_dim, mlp_dim=self.mlp_dim)
        check_choice("attention_dropout_form", self.attention_dropout_form, get_args(DropoutForm))
        if not 0 <= self.attention_dropout < 1:
            raise InputError(f"attention_dropout is {self.attention_dropout}: expected at least 0 and less than 1")

    @property
    def label(self) -> str:
        return self.attention

    @property
    def needs(self) -> tuple[Need, ...]:
        return () if self.causal else (HIDDEN_ANSWERS,)

    def build_rotation(self) -> nn.Module | None:
        """The map applied to the queries and keys of a block: the rotary embedding, if any."""
        return Rotary(self.kqv_dim // self.num_heads) if self.position == "rotary" else None

    def build(self, task: Task) -> nn.Module:
        return Transformer(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            sequence_length=task.sequence_length,
            num_read=task.num_read,
            num_isolated=task.num_read if task.isolated_queries else 0,
        )


class Block(nn.Module):
    """Attention, then a feed-forward network, each added to the residual stream."""

    def __init__(self, config: TransformerConfig, sequence_length: int, num_isolated: int = 0) -> None:
        super().__init__()
        size = config.embedding_dim
        self.attention_norm = ResidualNorm(size, eps=1e-6)
        self.attention = Attention(
            size,
            num_heads=config.num_heads,
            kqv_dim=config.kqv_dim,
            attention=config.attention,
            dropout=config.attention_dropout,
            dropout_form=config.attention_dropout_form,
        )
        self.bias: RelativeBias | None = None
        if config.position == "relative":
            self.bias = RelativeBias(config.num_heads, num_buckets=sequence_length, max_distance=sequence_length)
        self.rotary = config.build_rotation()
        self.feedforward_norm = ResidualNorm(size, eps=1e-6)
        self.feedforward = build_feedforward(config.feedforward, size, config.mlp_dim)
        self.causal = config.causal
        self.num_isolated = num_isolated

    def forward(
        self, x: Float[Tensor, "b k d"], num_queries: int, code_map: CodeMap | None, return_codes: bool
    ) -> tuple[Float[Tensor, "b q d"], Float[Tensor, "b h q k"] | None]:
        x, normed = self.attention_norm(x)
        mixed, codes = self.attention(
            normed,
            bias=None if self.bias is None else self.bias(num_queries, x.shape[1]),
            rotate=self.rotary,
            causal=self.causal,
            num_queries=num_queries,
            num_isolated=self.num_isolated,
            code_map=code_map,
            return_codes=return_codes,
        )
        # a slice of all tokens would still cost a copy in the backward pass
        x, normed = self.feedforward_norm(x if num_queries == x.shape[1] else x[:, -num_queries:], mixed)
        return x + self.feedforward(normed), codes


class Transformer(nn.Module):
    """Maps tokens to predictions for the last `num_read` of them; the last `num_isolated` do not see one another."""

    def __init__(
        self,
        config: TransformerConfig,
        *,
        input_dim: int,
        output_dim: int,
        sequence_length: int,
        num_read: int,
        num_isolated: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.num_read = num_read
        self.embed: nn.Module = lecun_linear(input_dim, config.embedding_dim)
        self.blocks = nn.ModuleList(Block(config, sequence_length, num_isolated) for _ in range(config.num_layers))
        self.output_norm = nn.LayerNorm(config.embedding_dim, eps=1e-6)
        self.output = lecun_linear(config.embedding_dim, output_dim)

    @property
    def probe_sites(self) -> tuple[Site, ...]:
        """The residual stream after each block, and the hidden activations of each feed-forward network."""
        residual = [Site(f"residual.{i}", f"blocks.{i}") for i in range(len(self.blocks))]
        hidden = [Site(f"hidden.{i}", f"blocks.{i}.feedforward.output", "input") for i in range(len(self.blocks))]
        paths = dict(self.named_modules())
        return tuple(site for site in residual + hidden if site.path in paths)

    def forward(
        self,
        inputs: Float[Tensor, "b tokens features"],
        *,
        return_codes: bool = False,
        code_maps: Sequence[CodeMap | None] | None = None,
    ) -> Any:
        """Predictions (b, num_read, output_dim); with `return_codes` also the latent codes (b, h, q, k) of each layer.

        In the last layer only the tokens that are read are queries; queries are aligned at the end in every layer, so
        `codes[layer][:, :, -1, -1]` is the last token attending to itself. `code_maps` changes a layer's codes.
        """
        x = self.embed(inputs)
        codes = []
        for i, block in enumerate(self.blocks):
            num_queries = self.num_read if i == len(self.blocks) - 1 else x.shape[1]
            x, code = block(x, num_queries, None if code_maps is None else code_maps[i], return_codes)
            codes.append(code)
        predictions = self.output(self.output_norm(x))
        return (predictions, codes) if return_codes else predictions


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


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
