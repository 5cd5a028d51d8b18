"""Dense layers with LeCun initialisation: truncated-normal weights of variance 1/fan_in, biases 0 (attention paper, app. C)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.dispatch import dense

# standard deviation of a standard normal truncated at +-2; dividing by it restores unit variance
TRUNCATED_DEVIATION = 0.87962566103423978


@torch.no_grad()
def lecun_normal_(weight: Tensor, fan_in: int | None = None) -> Tensor:
    """Fill `weight` in place; `fan_in` is the last dimension unless given."""
    deviation = (fan_in or weight.shape[-1]) ** -0.5 / TRUNCATED_DEVIATION
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class Dense(nn.Linear):
    """`nn.Linear` by the fastest product there is."""

    def forward(self, input: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch output"]:
        return dense(input, self.weight, self.bias)


def lecun_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with LeCun weights and zero bias."""
    layer = Dense(in_features, out_features, bias=bias)
    lecun_normal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
