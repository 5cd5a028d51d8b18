"""Feed-forward layers of a block: MLP, SwiGLU and the mixture of experts of Table A1.

A token x is mapped to

    mlp                   W_out gelu(W_in x + b_in) + b_out             (GELU in its tanh form)
    swiglu                W_out (silu(W_gate x) * W_up x)               (Shazeer 2020; no biases)
    mixture_of_experts    sum_i Softmax(Top_k(W_gate x))_i MLP_i(x)     (Shazeer et al. 2017; attention paper, app. A.1)

LeCun initialisation: truncated-normal weights of variance 1/fan_in, biases 0 (attention paper, app. C).

Addition to the residual stream followed by LayerNorm, as in a pre-norm block.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from recombine.attention.dense import lecun_linear, lecun_normal_
from recombine.attention.dispatch import add_norm, dense, linear_gelu
from recombine.foundation.errors import InputError, check_choice, check_positive


class MLP(nn.Module):
    """One hidden layer with biases."""

    def __init__(self, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__()
        check_positive(embedding_dim=embedding_dim, hidden_dim=hidden_dim)
        self.input = lecun_linear(embedding_dim, hidden_dim)
        self.output = lecun_linear(hidden_dim, embedding_dim)

    def forward(self, x: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch embedding"]:
        return self.output(linear_gelu(x, self.input.weight, self.input.bias))


class SwiGLU(nn.Module):
    """One hidden layer whose features are gated by a second projection."""

    def __init__(self, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__()
        check_positive(embedding_dim=embedding_dim, hidden_dim=hidden_dim)
        self.gate_and_up = lecun_linear(embedding_dim, 2 * hidden_dim, bias=False)
        self.output = lecun_linear(hidden_dim, embedding_dim, bias=False)

    def forward(self, x: Float[Tensor, "*batch embedding"]) -> Float[Tensor, "*batch embedding"]:
        gate, up = self.gate_and_up(x).chunk(2, dim=-1)
        return self.output(functional.silu(gate) * up)


class MixtureOfExperts(nn.Module):
    """Each token is processed by its `top_k` best of `num_experts` MLPs, weighted by a softmax over those `top_k`.

    All experts are computed for all tokens as one wide layer, and the others are weighted by 0. Shapes stay static (so it
    compiles), at a cost of num_experts / top_k times the routed computation. There is no load-balancing loss.
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
        hidden = linear_gelu(x, self.input_weight.flatten(0, 1), self.input_bias.flatten())
        hidden = hidden.unflatten(-1, self.input_bias.shape) * weights[..., None].to(hidden.dtype)
        output_weight = self.output_weight.transpose(0, 1).flatten(1)
        return dense(hidden.flatten(-2), output_weight, None) + weights @ self.output_bias


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
