"""A decoder-only language model (Attention as a Hypernetwork, section 5; NanoDO).

    x = embedding[tokens];  x = x + attention(norm(x));  x = x + feedforward(norm(x));  logits = norm(x) embeddingᵀ

Attention is causal, positions are rotary (or a relative bias, as in the released WikiText experiment), and the embedding
is also the output layer. `LanguageModel.start` returns a cache for inference one token at a time.

`generate` continues a prompt. Its random numbers are a pure function of the seed and the number of the token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recombine.attention.cache import AttentionCache, build_cache
from recombine.attention.definition import CodeMap
from recombine.attention.layer import ATTENTIONS, Attention, OutputScale, RelativeBias, Rotary
from recombine.foundation.errors import InputError, check_positive, require
from recombine.models.base import TOKENS, Need, Site
from recombine.models.transformer import Block, BlocksConfig, ResidualNorm, build_feedforward
from recombine.random import Stream
from recombine.tasks.base import Task

TokenPosition = Literal["rotary", "relative"]
Initialisation = Literal["lecun", "xavier"]
NUM_BUCKETS = 32  # of the relative bias, as in T5


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(BlocksConfig):
    """Sizes and choices of a language model; the task gives the number of tokens."""

    kind: ClassVar[str] = "language_model"

    num_layers: int = 4
    embedding_dim: int = 256
    kqv_dim: int = 256
    mlp_dim: int = 1024
    position: TokenPosition = "rotary"
    """Rotary, or a learned bias per head and distance."""
    qk_norm: bool = False
    """Normalise queries and keys of each head to unit mean square, times a learned scale."""
    biases: bool = True
    """Let dense layers and norms have biases."""
    output_scale: OutputScale = "none"
    """Scale of the output of each head: none, as in the paper, or one that does not grow with the number of keys."""
    initialisation: Initialisation = "lecun"
    """Truncated normal of variance 1 / fan-in (AH), or Xavier-uniform (NanoDO)."""

    @property
    def needs(self) -> tuple[Need, ...]:
        return (TOKENS,)

    def build_block(self, context_length: int) -> Block:
        attention = Attention(
            self.embedding_dim,
            num_heads=self.num_heads,
            kqv_dim=self.kqv_dim,
            attention=self.attention,
            output_scale=self.output_scale,
        )
        bias, rotation, head_dim = None, None, self.kqv_dim // self.num_heads
        if self.position == "relative":
            max_distance = max(context_length, NUM_BUCKETS)
            bias = RelativeBias(self.num_heads, num_buckets=NUM_BUCKETS, max_distance=max_distance)
        else:
            rotation = Rotary(head_dim)
        feedforward = build_feedforward(self.feedforward, self.embedding_dim, self.mlp_dim)
        norm = QueryKeyNorm(head_dim) if self.qk_norm else None
        return Block(attention, feedforward, bias=bias, rotation=rotation, causal=True, query_key_norm=norm)

    def build(self, task: Task) -> nn.Module:
        assert task.vocabulary_size is not None
        return LanguageModel(self, num_tokens=task.vocabulary_size, context_length=task.sequence_length)


class QueryKeyNorm(nn.Module):
    """RMS norm of the queries and keys of each head, before they are rotated."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.query_scale = nn.Parameter(torch.ones(head_dim))
        self.key_scale = nn.Parameter(torch.ones(head_dim))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        normed = (
            functional.rms_norm(x.float(), x.shape[-1:], scale, eps=1e-6).to(x.dtype)
            for x, scale in ((q, self.query_scale), (k, self.key_scale))
        )
        return next(normed), next(normed)


class LanguageModel(nn.Module):
    """Maps tokens to logits of the next token, at every position."""

    def __init__(self, config: LanguageModelConfig, *, num_tokens: int, context_length: int) -> None:
        super().__init__()
        self.config, self.num_tokens, self.context_length = config, num_tokens, context_length
        self.embedding = nn.Embedding(num_tokens, config.embedding_dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)
        self.blocks = nn.ModuleList(config.build_block(context_length) for _ in range(config.num_layers))
        self.output_norm = ResidualNorm(config.embedding_dim, eps=1e-6)
        if config.initialisation == "xavier":
            initialise_xavier(self)
        if not config.biases:
            drop_biases(self)

    @property
    def probe_sites(self) -> tuple[Site, ...]:
        """The normed residual stream before each feed-forward network, and the hidden activations of that network."""
        sites = []
        for i in range(len(self.blocks)):
            sites += [Site(f"normed.{i}", f"blocks.{i}.feedforward", "input")]
            sites += [Site(f"hidden.{i}", f"blocks.{i}.feedforward.output", "input")]
        paths = dict(self.named_modules())
        return tuple(site for site in sites if site.path in paths)

    def start(self, *, keep_keys: bool = False) -> list[AttentionCache]:
        """Empty caches, one per layer, for `forward`.

        Linear attention caches a sum over tokens. `keep_keys` caches keys and values, which changes of codes need.
        """
        choices, has_bias = ATTENTIONS[self.config.attention], self.config.position == "relative"
        return [build_cache(*choices, has_bias=has_bias, keep_keys=keep_keys) for _ in self.blocks]

    def forward(
        self,
        inputs: Int[Tensor, "b t"],
        *,
        cache: Sequence[AttentionCache] | None = None,
        num_read: int | None = None,
        return_codes: bool = False,
        code_maps: Sequence[CodeMap | None] | None = None,
    ) -> Any:
        """Logits (b, t, tokens), or those of the last `num_read` positions; with `return_codes` also the latent codes.

        With a `cache`, the inputs follow the tokens that it has seen. `code_maps` changes the codes of a layer.
        """
        if inputs.ndim != 2 or inputs.is_floating_point():
            raise InputError(f"inputs are {inputs.dtype} {tuple(inputs.shape)}: expected whole numbers (batch, tokens)")
        x = self.embedding(inputs)
        codes = []
        for i, block in enumerate(self.blocks):
            x, code = block(
                x,
                cache=None if cache is None else cache[i],
                code_map=None if code_maps is None else code_maps[i],
                return_codes=return_codes,
            )
            codes.append(code)
        logits = self.read(self.output_norm(x if num_read is None else x[:, -num_read:])[1])
        return (logits, codes) if return_codes else logits

    def read(self, normed: Float[Tensor, "b t embedding"]) -> Float[Tensor, "b t tokens"]:
        """Logits of the next token from the normed residual stream."""
        with torch.autocast(normed.device.type, enabled=False):  # logits and softmax are float32, as in NanoDO
            return normed.float() @ self.embedding.weight.float().T


def initialise_xavier(model: nn.Module) -> None:
    """Draw the weights of dense layers Xavier-uniformly; queries, keys and values are three matrices in one."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, Attention):
            for part in module.qkv_weight.chunk(3):
                nn.init.xavier_uniform_(part)


def drop_biases(model: nn.Module) -> None:
    """Fix all biases at 0: they are no parameters then, and kernels need not know."""
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if name.endswith("bias"):
                delattr(module, name)
                module.register_buffer(name, torch.zeros_like(parameter), persistent=False)


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """Tokens that follow a prompt, up to `num_tokens` or until `stop`; with temperature 0 always the most likely one.

    Of the tokens, the most likely ones with a total probability of `top_p` are drawn from.
    """
    check_positive(num_tokens=num_tokens)
    require(temperature >= 0, "temperature", temperature, "0 or a positive number")
    require(0 < top_p <= 1, "top_p", top_p, "a number above 0, at most 1")
    if not prompt:
        raise InputError("the prompt is empty: expected at least one token")

    def continue_prompt() -> Iterator[int]:
        cache, new = model.start(), list(prompt)
        for number in range(num_tokens):
            with torch.inference_mode():
                inputs = torch.tensor([new], device=model.embedding.weight.device)
                logits = model(inputs, cache=cache, num_read=1)[0, -1].float().cpu()
            draw = Stream("generate", seed, number, rows=range(1)).uniform(1).item()
            new = [choose_token(logits, draw, temperature=temperature, top_p=top_p)]
            yield new[0]
            if new[0] == stop:
                return

    return continue_prompt()


def choose_token(logits: Float[Tensor, " tokens"], draw: float, *, temperature: float, top_p: float) -> int:
    """The token at a place between 0 and 1 in the distribution; the most likely tokens come first."""
    if temperature == 0:
        return int(logits.argmax())
    probabilities, order = (logits.double() / temperature).softmax(dim=0).sort(descending=True, stable=True)
    total = probabilities.cumsum(dim=0)
    num_kept = int((total - probabilities < top_p).sum())
    index = int(torch.searchsorted(total[:num_kept], draw * total[num_kept - 1], right=True))
    return int(order[min(index, num_kept - 1)])
