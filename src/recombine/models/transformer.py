"""The transformer of all in-context tasks (Attention as a Hypernetwork, arXiv 2406.05816, appendix C), and its layers.

    x = x + attention(norm(x));  x = x + feedforward(norm(x));  prediction = dense(norm(x))

Pre-norm blocks between a dense input and a dense output layer. Each layer has its own table of relative position
biases. Only the last `num_read` tokens are read as predictions, so the last block computes queries, output projection and
feed-forward for these alone: the same numbers, for less work.

`task_transformer` is a causal transformer with the task as its first token (SC, arXiv 2507.07207): task, x_1, x_2, ... -> y_1,
y_2, ... It differs in two ways: the encoding of the task and the inputs have separate dense layers, and queries and keys are
normalised before the rotary position embedding (see Henry et al. 2020 on normalising them).

Feed-forward layers map a token x to

    mlp                   W_out gelu(W_in x + b_in) + b_out             (GELU in its tanh form)
    swiglu                W_out (silu(W_gate x) * W_up x)               (Shazeer 2020; no biases)
    mixture_of_experts    sum_i Softmax(Top_k(W_gate x))_i MLP_i(x)     (Shazeer et al. 2017; attention paper, app. A.1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from recombine.attention.cache import AttentionCache
from recombine.attention.cpu.kernels import feed_forward, norm_dense
from recombine.attention.definition import CodeMap, DropoutForm
from recombine.attention.dispatch import add_norm, check_dropout, dense, fuse_block, linear_gelu, may_fuse
from recombine.attention.layer import Attention, AttentionName, Dense, RelativeBias, Rotary, lecun_linear, lecun_normal_
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.models.base import ENCODING, HIDDEN_ANSWERS, SAME_LENGTHS, ModelConfig, Need, Site
from recombine.tasks.base import Task

Position = Literal["relative", "rotary", "none"]


@dataclass(frozen=True, kw_only=True)
class BlocksConfig(ModelConfig):
    """Sizes and choices of a stack of blocks."""

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

    def __post_init__(self) -> None:
        check_positive(num_layers=self.num_layers, embedding_dim=self.embedding_dim, mlp_dim=self.mlp_dim)

    @property
    def label(self) -> str:
        return self.attention


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlocksConfig):
    """Sizes and choices of a transformer; the task gives the sizes of its input and output."""

    kind: ClassVar[str] = "transformer"

    position: Position = "relative"
    """A learned bias per head and distance, rotary, or none."""
    causal: bool = False
    """Let tokens attend to earlier tokens only."""
    attention_dropout: float = 0.0
    """Fraction of latent codes dropped in training (0.1 in the authors' release of HYLA)."""
    attention_dropout_form: DropoutForm = "pairs"
    """`pairs`: one mask over (query, key) for all rows and heads, as in that release; `elements`: independent masks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout(self.attention_dropout)

    @property
    def needs(self) -> tuple[Need, ...]:
        return () if self.causal else (HIDDEN_ANSWERS,)

    def build_rotation(self) -> nn.Module | None:
        """The map of the queries and keys of a block: the rotary embedding, if any."""
        return Rotary(self.kqv_dim // self.num_heads) if self.position == "rotary" else None

    def build_block(self, sequence_length: int, num_isolated: int = 0) -> Block:
        attention = Attention(
            self.embedding_dim,
            num_heads=self.num_heads,
            kqv_dim=self.kqv_dim,
            attention=self.attention,
            dropout=self.attention_dropout,
            dropout_form=self.attention_dropout_form,
            num_isolated=num_isolated,
        )
        bias: RelativeBias | None = None
        if self.position == "relative":
            bias = RelativeBias(self.num_heads, num_buckets=sequence_length, max_distance=sequence_length)
        feedforward = build_feedforward(self.feedforward, self.embedding_dim, self.mlp_dim)
        return Block(attention, feedforward, bias=bias, rotation=self.build_rotation(), causal=self.causal)

    def build(self, task: Task) -> nn.Module:
        return Transformer(
            self,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            sequence_length=task.sequence_length,
            num_read=task.num_read,
            num_isolated=task.num_read if task.isolated_queries else 0,
        )


class MLP(nn.Module):
    """One hidden layer with biases."""

    def __init__(self, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.input = lecun_linear(embedding_dim, hidden_dim)
        self.output = lecun_linear(hidden_dim, embedding_dim)

    def forward(self, x: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch embedding"]:
        return self.output(linear_gelu(x, self.input.weight, self.input.bias))


class SwiGLU(nn.Module):
    """One hidden layer whose features are gated by a second projection."""

    def __init__(self, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate_and_up = lecun_linear(embedding_dim, 2 * hidden_dim, bias=False)
        self.output = lecun_linear(hidden_dim, embedding_dim, bias=False)

    def forward(self, x: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch embedding"]:
        gate, up = self.gate_and_up(x).chunk(2, dim=-1)
        return self.output(functional.silu(gate) * up)


class MixtureOfExperts(nn.Module):
    """Each token is processed by its `top_k` best of `num_experts` MLPs, weighted by a softmax over those `top_k`.

    On a CPU each expert computes the tokens that are routed to it. On other devices, where the number of such tokens would have
    to be waited for, and for compilers, which need static shapes, all experts are computed for all tokens as one wide layer, and
    the others are weighted by 0. There is no load-balancing loss.
    """

    def __init__(self, embedding_dim: int, hidden_dim: int, num_experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        check_positive(embedding_dim=embedding_dim, hidden_dim=hidden_dim, num_experts=num_experts, top_k=top_k)
        if top_k > num_experts:
            raise InputError(f"top_k is {top_k}: expected at most num_experts = {num_experts}")
        self.top_k = top_k
        self.gate = lecun_linear(embedding_dim, num_experts, bias=False)
        self.input_weight = nn.Parameter(torch.empty(num_experts, hidden_dim, embedding_dim))
        self.input_bias = nn.Parameter(torch.zeros(num_experts, hidden_dim))
        self.output_weight = nn.Parameter(torch.empty(num_experts, embedding_dim, hidden_dim))
        self.output_bias = nn.Parameter(torch.zeros(num_experts, embedding_dim))
        lecun_normal_(self.input_weight)
        lecun_normal_(self.output_weight)

    def route(self, x: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch expert"]:
        """The weight of each expert for each token: `top_k` of them positive, 0 for the rest."""
        logits = self.gate(x)
        best = logits.topk(self.top_k, dim=-1)
        return torch.full_like(logits, -torch.inf).scatter(-1, best.indices, best.values).softmax(dim=-1)

    def forward(self, x: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch embedding"]:
        weights = self.route(x)
        if x.device.type == "cpu" and may_fuse():
            return self.run_routed(x.flatten(0, -2), weights.flatten(0, -2)).view(x.shape)
        hidden = linear_gelu(x, self.input_weight.flatten(0, 1), self.input_bias.flatten())
        hidden = hidden.unflatten(-1, self.input_bias.shape) * weights[..., None].to(hidden.dtype)
        output_weight = self.output_weight.transpose(0, 1).flatten(1)
        return dense(hidden.flatten(-2), output_weight, None) + weights @ self.output_bias

    def run_routed(
        self, x: Float[Tensor, "rows embedding"], weights: Float[Tensor, "rows expert"]
    ) -> Float[Tensor, "rows embedding"]:
        """The same, each expert on its tokens."""
        chosen = weights.topk(self.top_k, dim=-1)
        experts = chosen.indices.flatten()
        order = experts.argsort(stable=True)  # of pairs of a row and one of its experts
        # the gradient of `embedding` is much faster than that of an index
        routed = functional.embedding(order // self.top_k, x).split(
            experts.bincount(minlength=len(self.input_bias)).tolist()
        )
        parameters = (self.input_weight, self.input_bias, self.output_weight, self.output_bias)
        updates = [
            dense(linear_gelu(tokens, weight, bias), output_weight, output_bias)
            for tokens, weight, bias, output_weight, output_bias in zip(
                routed, *(parameter.unbind() for parameter in parameters), strict=True
            )
        ]
        by_row = functional.embedding(order.argsort(), torch.cat(updates)).view(*chosen.indices.shape, -1)
        return (by_row * chosen.values[..., None]).sum(dim=1).to(by_row.dtype)


FEEDFORWARDS: dict[str, type[nn.Module]] = {"mlp": MLP, "swiglu": SwiGLU, "mixture_of_experts": MixtureOfExperts}


def build_feedforward(name: str, embedding_dim: int, hidden_dim: int) -> nn.Module:
    """The feed-forward layer of that name."""
    check_choice("feed-forward layer", name, FEEDFORWARDS)
    return FEEDFORWARDS[name](embedding_dim, hidden_dim)


class ResidualNorm(nn.LayerNorm):
    """Adds an update to the residual stream, if there is one, and returns the sum and its LayerNorm."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "*batch width"], update: Float[Tensor, "*batch width"] | None = None
    ) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
        return add_norm(x, update, self.weight, self.bias, self.eps)


def has_plain_type(modules: dict[nn.Module, type[nn.Module]]) -> bool:
    """Whether each module is of exactly this type and has no hooks, so that its parameters say what it computes."""
    return not _has_any_global_hook() and all(
        type(module) is kind
        and not (
            module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        )
        for module, kind in modules.items()
    )


class Block(nn.Module):
    """Attention, then a feed-forward network, each added to the residual stream."""

    def __init__(
        self,
        attention: Attention,
        feedforward: nn.Module,
        *,
        bias: RelativeBias | None,
        rotation: nn.Module | None,
        causal: bool,
        query_key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        size = attention.output.out_features
        self.attention_norm = ResidualNorm(size, eps=1e-6)
        self.attention = attention
        self.bias = bias
        self.rotary = rotation
        self.query_key_norm = query_key_norm
        self.feedforward_norm = ResidualNorm(size, eps=1e-6)
        self.feedforward = feedforward
        self.causal = causal

    def forward(
        self,
        x: Float[Tensor, "b k d"],
        *,
        num_queries: int | None = None,
        mask: Bool[Tensor, "*#pairs"] | None = None,
        code_map: CodeMap | None = None,
        return_codes: bool = False,
        cache: AttentionCache | None = None,
    ) -> tuple[Float[Tensor, "b q d"], Float[Tensor, "b h q keys"] | None]:
        """The last `num_queries` tokens and their latent codes; with a `cache`, the tokens follow those that it has seen."""
        num_tokens, first = x.shape[1], 0 if cache is None else cache.length
        num_queries = num_tokens if num_queries is None else num_queries
        choices: dict[str, Any] = {
            "bias": None if self.bias is None else self.bias(num_queries, first + num_tokens),
            "mask": mask,
            "rotate": lambda q, k: self.rotate(q, k, first),
            "causal": self.causal,
            "code_map": code_map,
            "return_codes": return_codes,
            "cache": cache,
        }
        if has_plain_type({self.attention: Attention, self.attention_norm: ResidualNorm}) and fuse_block(
            x, *self.list_projection()
        ):
            x, projections = self.project_fused(x, num_queries)
            heads, codes = self.attention.mix(*projections, **choices)
            if self.has_plain_feedforward() and fuse_block(x, *self.list_feedforward()):
                return feed_forward(x, heads, self.feedforward_norm.eps, *self.list_feedforward()), codes
            mixed = self.attention.output(heads)
        else:
            all_queries = num_queries == num_tokens
            x, normed = self.attention_norm(x)
            mixed, codes = self.attention(
                normed if all_queries else normed[:, num_tokens - num_queries :],
                None if all_queries else normed,
                **choices,
            )
            # a slice of all tokens would still cost a copy in the backward pass
            x = x if all_queries else x[:, -num_queries:]
        x, normed = self.feedforward_norm(x, mixed)
        return x + self.feedforward(normed), codes

    def project_fused(
        self, x: Float[Tensor, "b k d"], num_queries: int
    ) -> tuple[Float[Tensor, "b q d"], tuple[Float[Tensor, "b _ h e"], ...]]:
        """The last `num_queries` tokens, and queries, keys and values, from a norm and a product in one pass."""
        gain, shift, weight, bias = self.list_projection()
        epsilon, size = self.attention_norm.eps, self.attention.kqv_dim
        if num_queries == x.shape[1]:
            x, qkv = norm_dense(x, gain, shift, epsilon, weight, bias)
            return x, self.attention.split_heads(*qkv.chunk(3, dim=-1))
        context, keys_and_values = norm_dense(x, gain, shift, epsilon, weight[size:], bias[size:])
        x, q = norm_dense(context[:, -num_queries:], gain, shift, epsilon, weight[:size], bias[:size])
        return x, self.attention.split_heads(q, *keys_and_values.chunk(2, dim=-1))

    def has_plain_feedforward(self) -> bool:
        """Whether the layers after the attention are this file's, and nobody watches them."""
        network = self.feedforward
        return isinstance(network, MLP) and has_plain_type(
            {
                network: MLP,
                network.input: Dense,
                network.output: Dense,
                self.attention.output: Dense,
                self.feedforward_norm: ResidualNorm,
            }
        )

    def list_projection(self) -> tuple[Tensor, ...]:
        """The parameters of `norm_dense`."""
        norm, attention = self.attention_norm, self.attention
        return norm.weight, norm.bias, attention.qkv_weight, attention.qkv_bias

    def list_feedforward(self) -> tuple[Tensor, ...]:
        """The parameters of `feed_forward`."""
        layers: tuple[Any, ...] = (
            self.feedforward_norm,
            self.attention.output,
            self.feedforward.input,
            self.feedforward.output,
        )
        return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))

    def rotate(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], first_key: int
    ) -> tuple[Float[Tensor, "b q h d"], Float[Tensor, "b k h d"]]:
        """Queries and keys after their norm and rotation, if any; the keys begin at position `first_key`."""
        if self.query_key_norm is not None:
            q, k = self.query_key_norm(q, k)
        return (q, k) if self.rotary is None else self.rotary(q, k, first_key)


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
        self.blocks = nn.ModuleList(config.build_block(sequence_length, num_isolated) for _ in range(config.num_layers))
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
            x, code = block(
                x,
                num_queries=self.num_read if i == len(self.blocks) - 1 else None,
                code_map=None if code_maps is None else code_maps[i],
                return_codes=return_codes,
            )
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
    num_layers: int = 4
    embedding_dim: int = 256
    kqv_dim: int = 256
    mlp_dim: int = 1024
    num_heads: int = 4
    position: Position = "rotary"
    causal: bool = True
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

    def __init__(self, head_dim: int, rotation: nn.Module | None) -> None:
        super().__init__()
        self.query, self.key = nn.RMSNorm(head_dim, eps=1e-6), nn.RMSNorm(head_dim, eps=1e-6)
        self.rotation = rotation

    def forward(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], first_key: int = 0
    ) -> tuple[Float[Tensor, "b q h d"], Float[Tensor, "b k h d"]]:
        q, k = self.query(q), self.key(k)
        return (q, k) if self.rotation is None else self.rotation(q, k, first_key)


class TaskTransformer(Transformer):
    """Maps tokens, each the encoding of a task and an input, to one prediction per token."""

    def __init__(
        self, config: TaskTransformerConfig, *, encoding_dim: int, x_dim: int, output_dim: int, num_tokens: int
    ) -> None:
        super().__init__(
            config, input_dim=x_dim, output_dim=output_dim, sequence_length=num_tokens + 1, num_read=num_tokens
        )
        self.embed = TaskEmbedding(encoding_dim, x_dim, config.embedding_dim)
