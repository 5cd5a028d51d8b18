"""Convert the masks of `torch.nn.MultiheadAttention` to the bias and the mask of our kernels.

In torch a bool mask is True where a query may *not* attend; a float mask is added to the scores, and -inf means "may not".
The kernel separates the two: a finite bias, and a mask that is True where a query *may* attend.

Many models use -1e9 or `torch.finfo(...).min` for -inf. Before a softmax this is equivalent. Without one, such a *score*
would dominate all others, so every score at or below MASKED_SCORE means "may not".
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recombine.errors import InputError

MASKED_SCORE = -1e4


def arrange_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, shape: tuple[int, int, int, int], batched: bool
) -> list[Tensor]:
    """Check torch's masks and view them so that they broadcast to `shape`, which is (b, h, q, k)."""
    b, h, q, k = shape
    masks = []
    if attn_mask is not None:
        _check_mask("attn_mask", attn_mask, [(q, k), (b * h, q, k)])
        masks.append(attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, (b, h)))
    if key_padding_mask is not None:
        _check_mask("key_padding_mask", key_padding_mask, [(b, k) if batched else (k,)])
        masks.append(key_padding_mask.reshape(b, 1, 1, k))
    return masks


def merge_masks(masks: list[Tensor], *, softmax: bool) -> tuple[Tensor | None, Tensor | None]:
    """Merge torch's masks into the kernel's bias and mask; `softmax` says whether the scores go through one."""
    bias = mask = None
    for given in masks:
        if given.dtype == torch.bool:
            allowed = ~given
        else:
            allowed = given > (-torch.inf if softmax else MASKED_SCORE)
            finite = given.masked_fill(~allowed, 0.0)
            bias = finite if bias is None else bias + finite
        mask = allowed if mask is None else mask & allowed
    return bias, mask


def pad_keys(tensor: Tensor | None, num_keys: int, value: float | bool) -> Tensor | None:
    """Extend a bias or mask to the keys that `add_bias_kv` and `add_zero_attn` append, with `value` for them."""
    if tensor is None or tensor.shape[-1] == num_keys:
        return tensor
    return functional.pad(tensor, (0, num_keys - tensor.shape[-1]), value=value)


def _check_mask(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if tuple(mask.shape) not in shapes:
        raise InputError(f"{name} has shape {tuple(mask.shape)}: expected {' or '.join(map(str, shapes))}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise InputError(f"{name} has type {mask.dtype}: expected torch.bool or a floating-point type")
