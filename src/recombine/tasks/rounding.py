"""Numbers rounded to a few decimals, as a text shows them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def snap(values: Float[Tensor, "*shape"], decimals: int) -> Float[Tensor, "*shape"]:
    """Round to so many decimals; 0 leaves the values as they are. Equal decimals are equal to the last bit."""
    return torch.round(values, decimals=decimals) if decimals else values
