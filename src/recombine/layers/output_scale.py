"""How large the output of attention is: as it comes, divided by the number of visible keys, or normalised.

Softmax attention averages over keys. Every other normalisation sums over them, so the output grows with the length of the
sequence. With n visible keys and out[q,h] from the kernel's `attend`, the choices are

    none         out                                       the papers' models
    sqrt_keys    out / sqrt(n)                             a sum of n independent terms keeps its size
    keys         out / n                                   the mean over keys
    norm         out / sqrt(mean_{h,e} out^2 + 1e-6)       RMS norm over all heads of a query, no learned scale

A key that the mask hides does not count. A query without any visible key has output 0 under every choice.
`benchmarks/output_scale.py` measures which of them trains best in a plain `nn.TransformerEncoder`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.errors import check_choice
from recombine.kernels import Normalisation
from recombine.kernels.reference import RMS_EPSILON

OutputScale = Literal["none", "sqrt_keys", "keys", "norm"]
OUTPUT_SCALES: tuple[OutputScale, ...] = get_args(OutputScale)
BEST: OutputScale = "norm"  # in models that were built for softmax attention


def choose_output_scale(output_scale: str | None, normalisation: Normalisation) -> OutputScale:
    """Check a choice; without one, the scale for models that were built for softmax attention."""
    if output_scale is None:
        # a softmax over keys is an average already
        return "none" if normalisation == "softmax" else BEST
    check_choice("output_scale", output_scale, OUTPUT_SCALES)
    return output_scale  # type: ignore[return-value]


def scale_output(
    heads: Float[Tensor, "b q h e"],
    output_scale: OutputScale,
    num_keys: int,
    mask: Bool[Tensor, "*#pairs"] | None = None,
    *,
    causal: bool = False,
) -> Float[Tensor, "b q h e"]:
    """Scale what each head of each query received from `num_keys` keys under a mask (see `kernels.attend`)."""
    if output_scale == "none":
        return heads
    precise = heads.to(torch.promote_types(heads.dtype, torch.float32))
    if output_scale == "norm":
        scaled = precise * torch.rsqrt(precise.square().mean(dim=(-2, -1), keepdim=True) + RMS_EPSILON)
    else:
        visible = count_visible(heads.shape[1], num_keys, mask, causal=causal, device=heads.device)
        visible = visible.transpose(1, 2)[..., None].clamp(min=1).to(precise.dtype)
        scaled = precise / (visible.sqrt() if output_scale == "sqrt_keys" else visible)
    return scaled.to(heads.dtype)


def count_visible(
    num_queries: int,
    num_keys: int,
    mask: Bool[Tensor, "*#pairs"] | None,
    *,
    causal: bool = False,
    device: torch.device | None = None,
) -> Float[Tensor, "#b #h q"]:
    """The number of keys that each query sees, as whole numbers in a float tensor."""
    last = torch.arange(num_keys - num_queries, num_keys, device=device)
    if mask is None:
        counts = (last + 1).clamp(min=0) if causal else torch.full_like(last, num_keys)
        return counts[None, None].float()
    mask = mask[(None,) * (4 - mask.dim())]
    mask = mask.expand(*mask.shape[:2], num_queries, num_keys)
    if causal:
        mask = mask & (torch.arange(num_keys, device=device) <= last[:, None])
    return mask.sum(dim=-1).float()
