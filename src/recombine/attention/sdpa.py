"""Softmax attention by torch's own `scaled_dot_product_attention`, where that is faster than the fused kernel.

It is never given a bias (its fast kernels have no gradient for one), a mask (rows without any key would need care), dropout
(ours is reproducible) or bf16 on a CPU. Its `is_causal` aligns queries at the start, ours at the end, so it is only asked for
as many queries as keys.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from recombine.attention.checks import open_door
from recombine.attention.cpu import attention as cpu
from recombine.attention.dropout import Dropout
from recombine.foundation.errors import InputError
from recombine.foundation.native import is_amd_with_avx512

HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
ENOUGH = 8192 if HAS_AVX512 else 16384
"""Length times head width (at most 64) from which torch is faster; if not causal, half of it."""
WIDE = 128
"""Head width from which torch is faster on CPUs with AVX-512, for long sequences."""


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    normalisation: str,
    value_network: str,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
    deep_weight: Tensor | None = None,
) -> bool:
    """Whether torch's function computes this, without ever storing a tensor of queries x keys."""
    dtypes = (torch.float32,) if q.device.type == "cpu" else (torch.float32, torch.bfloat16, torch.float16)
    return (
        (normalisation, value_network) == ("softmax", "linear")
        and bias is None
        and mask is None
        and dropout is None
        and q.dtype in dtypes
        and q.dtype == k.dtype == v.dtype
        and q.shape[3] == v.shape[3]
        and (not causal or q.shape[1] == k.shape[1])
        and q.numel() > 0
        and k.numel() > 0
    )


def pays(q: Tensor, k: Tensor, *, causal: bool) -> bool:
    """Whether it is faster than what else there is (`benchmarks/kernel_choice.py`)."""
    if q.device.type != "cpu" or not cpu.is_available():
        return True
    length, width = min(q.shape[1], k.shape[1]), q.shape[3]
    if is_amd_with_avx512():
        return width >= WIDE and length >= (4096 if causal else 256)
    if HAS_AVX512 and causal:  # measured on Intel's Cascade Lake
        return width >= 32 and length >= (1024 if width >= WIDE else 2048)
    return width >= 16 and length * min(width, 64) * (1 if causal else 2) >= ENOUGH


def attend(
    q: Float[Tensor, "#b q #h d"],
    k: Float[Tensor, "#b k #h d"],
    v: Float[Tensor, "#b k #h d"],
    *,
    normalisation: str = "softmax",
    value_network: str = "linear",
    bias: None = None,
    mask: None = None,
    causal: bool = False,
    dropout: None = None,
    deep_weight: None = None,
) -> Float[Tensor, "b q h d"]:
    """What `reference.attend` defines for softmax and the linear value network."""
    q, k, v = open_door(q, k, v, bias=bias, mask=mask, dropout=dropout)
    given: dict[str, Any] = {"bias": bias, "mask": mask, "causal": causal, "dropout": dropout}
    if not supports(q, k, v, normalisation=normalisation, value_network=value_network, **given):
        raise InputError(
            f"torch's attention does not take this {normalisation} + {value_network}: expected softmax + linear in "
            "float32 without bias, mask and dropout, and as many queries as keys if causal"
        )
    with torch.autocast(q.device.type, enabled=False):
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal
        )
    return out.transpose(1, 2)
