"""Linear attention in linear time: without normalisation, what a query receives is linear in a sum over keys.

    out[q,h] = sum_{k <= q} (q[q,h] . k[k,h] / sqrt(d)) v[k,h] = S[q,h]^T q[q,h] / sqrt(d)
    S[q,h]   = sum_{k <= q} k[k,h] v[k,h]^T

so the d x e numbers of S replace all keys seen so far. A sequence is computed in chunks: within a chunk by the definition, from
earlier chunks through S. Time and memory are linear in the length, in the
backward pass too, because with the *causal product*

    P(a, b, c)[i] = sum_{j <= i} (a[i] . b[j]) c[j]      and P', the same over j >= i

the gradients of out = P(q, k, v) under g are P(g, v, k) for q, P'(v, g, q) for k, and P'(k, q, g) for v: the same again.
Products are in float32 or better. A cache for generation (`cache.py`) needs only S.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from recombine.attention.definition import AttentionOptions

CHUNK = 64
"""Tokens that are multiplied pair by pair; about the width of a head costs least."""
MAX_OPERAND_SIZE = 1 << 18
"""Numbers of an operand that one call multiplies, in several chunks: enough to pay for the call, few enough for a cache."""
VALUE_NETWORKS = ("linear", "nonlinear_value")


def attend(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], options: AttentionOptions
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives, without normalisation and bias; a mask is that of padded batches, (b, 1, 1, k)."""
    mask = options.mask
    key_mask = None if mask is None else mask.expand(q.shape[0], 1, 1, k.shape[1])[:, 0, 0]
    dtype = v.dtype
    k, v = _prepare(k, v, options.value_network, key_mask)
    q = q.to(v.dtype)
    with _full_precision(q):
        return (_attend_causally(q, k, v) if options.causal else _read(q, _sum_products(k, v))).to(dtype)


def sum_products(
    k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], value_network: str
) -> Float[Tensor, "b h d e"]:
    """S of some tokens."""
    k, v = _prepare(k, v, value_network, None)
    with _full_precision(k):
        return _sum_products(k, v)


def read_sum(q: Float[Tensor, "b q h d"], total: Float[Tensor, "b h d e"]) -> Float[Tensor, "b q h e"]:
    """What queries receive that may see every token of a sum of products."""
    with _full_precision(q):
        return _read(q.to(total.dtype), total).to(q.dtype)


def _attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries are aligned at the end: the first may see all of the earlier keys, or nothing at all."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    num_shared = min(num_queries, num_keys)
    num_earlier, num_blind = num_keys - num_shared, num_queries - num_shared
    scale = q.shape[3] ** -0.5
    out = causal_product(q[:, num_blind:], k[:, num_earlier:], v[:, num_earlier:], scale, False)
    if num_earlier:
        out = out + _read(q, _sum_products(k[:, :num_earlier], v[:, :num_earlier]))
    return functional.pad(out, (0, 0, 0, 0, num_blind, 0)) if num_blind else out


def causal_product(
    a: Float[Tensor, "b t h d"], b: Float[Tensor, "b t h d"], c: Float[Tensor, "b t h e"], scale: float, reverse: bool
) -> Float[Tensor, "b t h e"]:
    """`scale` P(a, b, c), or P' if `reverse`, as defined above; differentiable any number of times."""
    return torch.ops.recombine.causal_product(a, b, c, scale, reverse)


def _prepare(k: Tensor, v: Tensor, value_network: str, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    precise = torch.promote_types(v.dtype, torch.float32)
    k, v = k.to(precise), v.to(precise)
    if key_mask is not None:
        k = k.masked_fill(~key_mask[..., None, None], 0.0)
    return k, v.relu() if value_network == "nonlinear_value" else v


def _sum_products(k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bkhd,bkhe->bhde", k, v)


def _read(q: Tensor, total: Tensor) -> Tensor:
    return torch.einsum("bqhd,bhde->bqhe", q, total * q.shape[-1] ** -0.5)


def _full_precision(x: Tensor):
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


# an operator, so that a compiled graph does not unroll the loop over chunks
torch.library.define("recombine::causal_product", "(Tensor a, Tensor b, Tensor c, float scale, bool reverse) -> Tensor")


@torch.library.impl("recombine::causal_product", "CompositeExplicitAutograd")
def _causal_product(a, b, c, scale, reverse):
    batch, num_tokens, heads, width = a.shape
    out = torch.empty_like(c, memory_format=torch.contiguous_format)
    total = c.new_zeros(batch * heads, width, c.shape[3])
    step = CHUNK * max(1, MAX_OPERAND_SIZE // (batch * heads * CHUNK * max(width, c.shape[3])))
    starts = range(0, num_tokens - num_tokens % CHUNK, step)
    parts = [slice(start, min(start + step, num_tokens - num_tokens % CHUNK)) for start in starts]
    if num_tokens % CHUNK:
        parts.append(slice(num_tokens - num_tokens % CHUNK, num_tokens))
    for part in reversed(parts) if reverse else parts:
        values = _multiply_chunks(a[:, part], b[:, part], c[:, part], total, reverse)
        torch.mul(values.transpose(1, 2), scale, out=out[:, part])
    return out


def _multiply_chunks(a: Tensor, b: Tensor, c: Tensor, total: Tensor, reverse: bool) -> Tensor:
    """The causal product of some chunks of one size; `total`, the sum over earlier chunks, is updated in place."""
    batch, num_tokens, heads, width = a.shape
    size = min(CHUNK, num_tokens)
    rows, keys, values = (x.transpose(1, 2).reshape(-1, size, x.shape[3]) for x in (a, b, c))
    pairs = torch.bmm(rows, keys.mT)
    sums = torch.bmm(keys.mT, values).view(batch * heads, -1, width, c.shape[3])
    earlier = torch.empty_like(sums)
    for i in reversed(range(sums.shape[1])) if reverse else range(sums.shape[1]):
        earlier[:, i] = total
        total += sums[:, i]
    result = torch.bmm(rows, earlier.view(-1, width, c.shape[3]))
    result.baddbmm_(pairs.triu_() if reverse else pairs.tril_(), values)
    return result.view(batch, heads, num_tokens, c.shape[3])


@torch.library.register_fake("recombine::causal_product")
def _(a, b, c, scale, reverse):
    return torch.empty_like(c, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output):
    a, b, c, ctx.scale, ctx.reverse = inputs
    ctx.save_for_backward(a, b, c)


def _differentiate(ctx, grad):
    a, b, c = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    grad_a = causal_product(grad, c, b, ctx.scale, ctx.reverse) if wanted[0] else None
    grad_b = causal_product(c, grad, a, ctx.scale, not ctx.reverse) if wanted[1] else None
    grad_c = causal_product(b, a, grad, ctx.scale, not ctx.reverse) if wanted[2] else None
    return grad_a, grad_b, grad_c, None, None


torch.library.register_autograd("recombine::causal_product", _differentiate, setup_context=_save)
