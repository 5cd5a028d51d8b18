"""Fused attention on GPUs in Triton: linear attention and HYLA, causal or not, with memory linear in the length.

The same function as `cpu/kernels.py`, without softmax: normalisations none and rms_head, value networks linear, nonlinear_value,
hyper_linear and hyper_relu, with bias and its gradient, causal and key-padding masks. The programs are in `triton_tiles.py`.

It is checked against the definition in Triton's interpreter (TRITON_INTERPRET=1), on a CPU. **Its speed has not been
measured**: no GPU was at hand, and the sizes of the tiles are guesses.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.attention.definition import AttentionOptions, is_key_mask
from recombine.foundation.errors import InputError
from recombine.foundation.native import constant_in_graphs

NORMALISATIONS = ("none", "rms_head")
VALUE_NETWORKS = ("linear", "nonlinear_value", "hyper_linear", "hyper_relu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_HEAD_WIDTH = 128
"""The hidden units of a tile must fit into registers."""
TILE = 16
"""Queries, and keys, of a tile: the least that Triton multiplies."""


@constant_in_graphs
def why_unavailable() -> str | None:
    """Why `is_available` is False, in one line."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not (_is_interpreted() or torch.cuda.is_available()):
        return "no GPU, and TRITON_INTERPRET is not set"
    return None


def is_available() -> bool:
    """Whether Triton is installed, and a GPU or its interpreter can run it."""
    return why_unavailable() is None


def supports(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether `attend` of this file computes this."""
    bias, mask = options.bias, options.mask
    tensors = [tensor for tensor in (q, k, v, bias, mask) if tensor is not None]
    device = "cpu" if _is_interpreted() else "cuda"
    return (
        options.deep_weight is None
        and options.dropout is None
        and (mask is None or is_key_mask(mask))
        and options.normalisation in NORMALISATIONS
        and options.value_network in VALUE_NETWORKS
        and all(tensor.device.type == device and tensor.numel() > 0 for tensor in tensors)
        and q.dtype in DTYPES
        and q.dtype == k.dtype == v.dtype
        and max(q.shape[3], v.shape[3]) <= MAX_HEAD_WIDTH
    )


def attend(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], options: AttentionOptions
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives."""
    reason = why_unavailable()
    if reason is not None:
        raise InputError(f"the Triton kernel is not available: {reason}")
    bias, mask, value_network = options.bias, options.mask, options.value_network
    if bias is not None:
        shared = bias.dim() < 4 or bias.shape[0] == 1
        bias = bias.float().expand(1 if shared else q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    key_mask = None if mask is None else mask.expand(len(q), 1, 1, k.shape[1])[:, 0, 0]
    if value_network == "nonlinear_value":
        v, value_network = v.relu(), "linear"
    return _Attend.apply(q, k, v, bias, key_mask, options.normalisation, value_network, options.causal)


class _Attend(torch.autograd.Function):
    """The programs, launched; the import is here for those who have no Triton."""

    @staticmethod
    def forward(ctx, q, k, v, bias, key_mask, normalisation, value_network, causal):
        from recombine.attention import triton_tiles

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        bias = None if bias is None else bias.contiguous()
        key_mask = None if key_mask is None else key_mask.contiguous().to(torch.uint8)
        ctx.save_for_backward(q, k, v, bias, key_mask)
        ctx.choices = (normalisation, value_network, causal)
        out = q.new_zeros(*q.shape[:3], v.shape[3], dtype=torch.float32)
        sizes, constants = _describe(q, k, v, bias, key_mask, *ctx.choices)
        grid = (_count_tiles(q), q.shape[0])
        with torch.cuda.device_of(q):
            triton_tiles.forward[grid](
                q, k, v, _or_placeholder(bias, q), _or_placeholder(key_mask, q), out, *sizes, **constants
            )
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        from recombine.attention import triton_tiles

        if torch.is_grad_enabled():
            raise NotImplementedError("the Triton kernel has no second derivatives: use the reference kernel for them")
        q, k, v, bias, key_mask = ctx.saved_tensors
        sizes, constants = _describe(q, k, v, bias, key_mask, *ctx.choices)
        grads = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (q, k, v)]
        needs_bias = ctx.needs_input_grad[3]
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        inputs = (q, k, v, _or_placeholder(bias, q), _or_placeholder(key_mask, q), grad_out.contiguous())
        outputs = (*grads, _or_placeholder(grad_bias, q))
        owners = {
            triton_tiles.OWN_QUERIES: (_count_tiles(q), q.shape[0]),
            triton_tiles.OWN_KEYS: (_count_tiles(k), q.shape[0]),
        }
        if needs_bias:
            owners[triton_tiles.OWN_PAIRS] = (_count_tiles(q), _count_tiles(k))
        with torch.cuda.device_of(q):
            for owner, grid in owners.items():
                triton_tiles.backward[grid](*inputs, *outputs, q.shape[0], *sizes, **constants, OWNER=owner)
        return *(grad.to(q.dtype) for grad in grads), grad_bias, None, None, None, None


def _describe(
    q, k, v, bias, key_mask, normalisation, value_network, causal
) -> tuple[tuple[int, int, int, float, int], dict[str, object]]:
    """Sizes, and the constants for which a program is compiled."""
    dim, value_dim = q.shape[3], v.shape[3]
    bias_batch = 0 if bias is None or bias.shape[0] == 1 else bias.stride(0)
    sizes = (q.shape[1], k.shape[1], q.shape[2], dim**-0.5, bias_batch)
    constants = {
        "D": dim,
        "DP": _pad(dim),
        "E": value_dim,
        "EP": _pad(value_dim),
        "BQ": TILE,
        "BK": TILE,
        "RMS": normalisation == "rms_head",
        "HYPER": value_network != "linear",
        "RELU": value_network == "hyper_relu",
        "CAUSAL": causal,
        "MASKED": key_mask is not None,
        "BIASED": bias is not None,
        "num_warps": 8 if value_network != "linear" and value_dim > 32 else 4,
    }
    return sizes, constants


def _pad(features: int) -> int:
    """The next power of two, and no less than Triton multiplies."""
    return max(16, 1 << (features - 1).bit_length())


def _count_tiles(tokens: Tensor) -> int:
    return -(-tokens.shape[1] // TILE)


def _or_placeholder(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Programs need a pointer even where they read nothing."""
    return other if tensor is None else tensor


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
