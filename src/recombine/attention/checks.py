"""The check at the door of every kernel: shapes and types are right, or one `InputError` says what is wrong.

A fused kernel trusts the sizes it is given; what is wrong must not reach it. Every kernel calls `open_door` first, so all of
them accept, broadcast and refuse the same:

- queries, keys and values broadcast over batch and heads (a context shared by the batch, keys shared by the heads);
- the head sizes of queries and keys agree, and there are as many keys as values;
- a bias is floating-point, a mask is bool, and both broadcast to (b, h, q, k).
"""

from __future__ import annotations

import torch
from torch import Tensor

from recombine.attention.dropout import Dropout, check_dropout
from recombine.foundation.errors import InputError

DIMENSIONS = {"q": "(b, q, h, d)", "k": "(b, k, h, d)", "v": "(b, k, h, e)"}


def open_door(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    dropout: Dropout | None = None,
    deep_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Check the arguments of attention and return q, k and v with the batch and the heads that they share."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InputError(f"{name} has shape {tuple(tensor.shape)}: expected 4 dimensions, {DIMENSIONS[name]}")
        if not tensor.is_floating_point():
            raise InputError(f"{name} has type {tensor.dtype}: expected a floating-point type")
    if q.shape[3] != k.shape[3]:
        raise InputError(f"q has heads of {q.shape[3]} features and k of {k.shape[3]}: expected the same number")
    if k.shape[1] != v.shape[1]:
        raise InputError(f"there are {k.shape[1]} keys and {v.shape[1]} values: expected as many values as keys")
    given = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "deep_weight": deep_weight}
    for name, other in given.items():
        if other is not None and other.device != q.device:
            raise InputError(f"q is on {q.device} and {name} on {other.device}: expected the same device")
    batch, heads = _common_size("batch sizes", 0, q, k, v), _common_size("numbers of heads", 2, q, k, v)
    pairs = (batch, heads, q.shape[1], k.shape[1])
    if bias is not None:
        if not bias.is_floating_point():
            raise InputError(f"bias has type {bias.dtype}: expected a floating-point type")
        check_broadcasts("bias", bias, pairs)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InputError(f"mask has type {mask.dtype}: expected torch.bool, True where a query may attend")
        check_broadcasts("mask", mask, pairs)
    if dropout is not None:
        check_dropout(dropout.rate, dropout.form)
    if deep_weight is not None and deep_weight.shape != (heads, v.shape[3], v.shape[3]):
        expected = (heads, v.shape[3], v.shape[3])
        raise InputError(f"deep_weight has shape {tuple(deep_weight.shape)}: expected (h, e, e) = {expected}")
    return _expand(q, batch, heads), _expand(k, batch, heads), _expand(v, batch, heads)


def check_broadcasts(name: str, tensor: Tensor, shape: tuple[int, int, int, int]) -> None:
    """Require a bias or mask to broadcast to (b, h, q, k)."""
    wanted = shape[-tensor.dim() :] if tensor.dim() else ()
    if tensor.dim() > len(shape) or any(size not in (1, full) for size, full in zip(tensor.shape, wanted, strict=True)):
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: expected to broadcast to (b, h, q, k) = {shape}")


def check_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Require the arguments of a dense layer to fit together."""
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise InputError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}: expected (..., input) and (output, input)"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
        raise InputError(f"bias has shape {tuple(bias.shape)}: expected ({weight.shape[0]},), one per output")


def check_norm(residual: Tensor, update: Tensor | None, weight: Tensor, bias: Tensor) -> None:
    """Require the arguments of a residual sum with LayerNorm to fit together."""
    if update is not None and update.shape != residual.shape:
        raise InputError(
            f"the update has shape {tuple(update.shape)}: expected the residual's, {tuple(residual.shape)}"
        )
    if residual.dim() == 0 or not weight.shape == bias.shape == residual.shape[-1:]:
        raise InputError(
            f"weight and bias have shapes {tuple(weight.shape)} and {tuple(bias.shape)}: "
            f"expected {tuple(residual.shape[-1:])}, one number per feature"
        )


def is_key_mask(mask: Tensor) -> bool:
    """Whether a mask is the same for every head and query, as that of padded batches is."""
    return all(size == 1 for size in mask.shape[-3:-1])


def _common_size(what: str, dimension: int, *tensors: Tensor) -> int:
    sizes = [tensor.shape[dimension] for tensor in tensors]
    others = [size for size in sizes if size != 1]
    common = others[0] if others else 1
    if any(size not in (1, common) for size in sizes):
        listed = ", ".join(map(str, sizes))
        raise InputError(f"q, k, v have {what} {listed}: expected the same, or 1 where they are shared")
    return common


def _expand(tensor: Tensor, batch: int, heads: int) -> Tensor:
    """A view; its gradient is summed over what it repeats."""
    if tensor.shape[0] == batch and tensor.shape[2] == heads:
        return tensor
    return tensor.expand(batch, -1, heads, -1)
