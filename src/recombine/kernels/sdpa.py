"""Softmax attention by torch's `scaled_dot_product_attention`, where that is faster than the fused kernel."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def pays(q: Tensor, k: Tensor, *, causal: bool) -> bool:
    return False


def attend(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], *, causal: bool = False
) -> Float[Tensor, "b q h e"]:
    """Softmax attention without bias and mask, as `reference.attend` defines it."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(*heads_first, is_causal=causal).transpose(1, 2)
