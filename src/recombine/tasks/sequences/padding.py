"""Padding behind the end of sequences of different lengths."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.kernels import layers


def mark_real(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Bool[Tensor, "b t"]:
    """True for tokens, False for padding."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def clear_padding(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b t features"]:
    """Multiply the features of padding by 0, in place."""
    if layers.changes_in_place(x, lengths):
        return layers.clear_padding(x, lengths)
    return x.mul_(mark_real(x, lengths)[..., None])
