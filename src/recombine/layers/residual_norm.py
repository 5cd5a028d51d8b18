"""Addition to the residual stream followed by LayerNorm, as in a pre-norm block."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from recombine.kernels import add_norm


class ResidualNorm(nn.LayerNorm):
    """Adds an update to the residual stream, if there is one, and returns the sum and its LayerNorm."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "*batch width"], update: Float[Tensor, "*batch width"] | None = None
    ) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
        return add_norm(x, update, self.weight, self.bias, self.eps)
