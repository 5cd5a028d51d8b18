"""The Triton programs behind `triton.py`: attention in tiles of queries and keys, forward and backward.

The mathematics, and the names x, u, z, t, are those of `cpu.c`. A program owns one block of queries of one batch element
(output, gradient of queries), one block of keys (gradients of keys and values), or one patch of pairs (gradient of the bias),
loops over everything that contributes to it, and adds to memory that no other program touches: no atomics, no tensor of
queries x keys, and the same bits in every run. The backward pass computes the scores again for each kind of owner.

All tensors are contiguous, (b, t, h, f) for tokens and (b or 1, h, q, k) for pairs; sums are float32. Products of heads are
dot products of tiles; the hidden units of a hypernetwork, which differ for each pair, are a tile (query, key, feature).
"""

from __future__ import annotations

import triton
import triton.language as tl

RMS_EPSILON = tl.constexpr(1e-6)
OWN_QUERIES, OWN_KEYS, OWN_PAIRS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _locate(b, h, rows, num_rows, H, F: tl.constexpr, FP: tl.constexpr):
    """Offsets of the features of some tokens of one head, and which of them exist."""
    f = tl.arange(0, FP)
    return ((b * num_rows + rows[:, None]) * H + h) * F + f[None, :], (rows[:, None] < num_rows) & (f[None, :] < F)


@triton.jit
def _load(pointer, b, h, rows, num_rows, H, F: tl.constexpr, FP: tl.constexpr):
    at, exists = _locate(b, h, rows, num_rows, H, F, FP)
    return tl.load(pointer + at, mask=exists, other=0.0).to(tl.float32)


@triton.jit
def _add(pointer, x, b, h, rows, num_rows, H, F: tl.constexpr, FP: tl.constexpr):
    at, exists = _locate(b, h, rows, num_rows, H, F, FP)
    tl.store(pointer + at, tl.load(pointer + at, mask=exists, other=0.0) + x, mask=exists)


@triton.jit
def _see(key_mask, b, queries, keys, Q, K, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Which pairs exist and may attend; queries are aligned at the end of the keys."""
    seen = (queries[:, None] < Q) & (keys[None, :] < K)
    if CAUSAL:
        seen = seen & (keys[None, :] <= queries[:, None] + (K - Q))
    if MASKED:
        seen = seen & (tl.load(key_mask + b * K + keys, mask=keys < K, other=0)[None, :] != 0)
    return seen


@triton.jit
def _score(q, k, bias, seen, b, h, queries, keys, Q, K, H, scale, bias_batch, D: tl.constexpr, DP: tl.constexpr,
           BIASED: tl.constexpr):  # fmt: skip
    """Scores of a tile for one head; 0 where masked."""
    rows = _load(q, b, h, queries, Q, H, D, DP)
    s = tl.dot(rows, tl.trans(_load(k, b, h, keys, K, H, D, DP)), input_precision="ieee") * scale
    if BIASED:
        at = b * bias_batch + (h * Q + queries[:, None]) * K + keys[None, :]
        s += tl.load(bias + at, mask=seen, other=0.0)
    return tl.where(seen, s, 0.0)


@triton.jit
def forward(q, k, v, bias, key_mask, out, Q, K, H, scale, bias_batch, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr,
            EP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, RMS: tl.constexpr, HYPER: tl.constexpr, RELU: tl.constexpr,
            CAUSAL: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    """Add to `out` what a block of queries receives."""
    b = tl.program_id(1).to(tl.int64)
    queries = tl.program_id(0) * BQ + tl.arange(0, BQ)
    end = tl.minimum(K, K - Q + (tl.program_id(0) + 1) * BQ) if CAUSAL else K
    for k0 in range(0, end, BK):
        keys = k0 + tl.arange(0, BK)
        seen = _see(key_mask, b, queries, keys, Q, K, CAUSAL, MASKED)
        squares = tl.zeros([BQ, BK], tl.float32)
        if HYPER:
            x = tl.zeros([BQ, BK, EP], tl.float32)
        if RMS or HYPER:
            for h in range(H):
                s = _score(q, k, bias, seen, b, h, queries, keys, Q, K, H, scale, bias_batch, D, DP, BIASED)
                squares += s * s
                if HYPER:
                    x += s[:, :, None] * _load(v, b, h, keys, K, H, E, EP)[None, :, :]
        r2 = 1.0 / (squares / H + RMS_EPSILON) if RMS else tl.full([BQ, BK], 1.0, tl.float32)
        if HYPER:
            # `x <= 0` rather than a maximum, so that NaN is seen
            z = tl.where(x <= 0, 0.0, x) * r2[:, :, None] if RELU else x * r2[:, :, None]
        for h in range(H):
            s = _score(q, k, bias, seen, b, h, queries, keys, Q, K, H, scale, bias_batch, D, DP, BIASED)
            if HYPER:
                received = tl.sum(s[:, :, None] * z, axis=1)
            else:
                received = tl.dot(s * tl.sqrt(r2), _load(v, b, h, keys, K, H, E, EP), input_precision="ieee")
            _add(out, received, b, h, queries, Q, H, E, EP)


@triton.jit
def _add_gradients(q, k, v, bias, key_mask, grad_out, grad_q, grad_k, grad_v, grad_bias, b, queries, keys, Q, K, H, scale,
                   bias_batch, D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, BQ: tl.constexpr,
                   BK: tl.constexpr, RMS: tl.constexpr, HYPER: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr,
                   MASKED: tl.constexpr, BIASED: tl.constexpr, OWNER: tl.constexpr):  # fmt: skip
    """Add a tile's part to the gradients of which the program is the owner."""
    seen = _see(key_mask, b, queries, keys, Q, K, CAUSAL, MASKED)
    squares, dot = tl.zeros([BQ, BK], tl.float32), tl.zeros([BQ, BK], tl.float32)
    if HYPER:
        x, u = tl.zeros([BQ, BK, EP], tl.float32), tl.zeros([BQ, BK, EP], tl.float32)
    if RMS or HYPER:
        for h in range(H):
            s = _score(q, k, bias, seen, b, h, queries, keys, Q, K, H, scale, bias_batch, D, DP, BIASED)
            value, g = _load(v, b, h, keys, K, H, E, EP), _load(grad_out, b, h, queries, Q, H, E, EP)
            squares += s * s
            if HYPER:
                x += s[:, :, None] * value[None, :, :]
                u += s[:, :, None] * g[:, None, :]
            else:
                dot += s * tl.dot(g, tl.trans(value), input_precision="ieee")
    r2 = 1.0 / (squares / H + RMS_EPSILON) if RMS else tl.full([BQ, BK], 1.0, tl.float32)
    r = tl.sqrt(r2)
    if HYPER:
        if RELU:
            x, u = tl.where(x <= 0, 0.0, x), tl.where(x <= 0, 0.0, u)
        z, t = x * r2[:, :, None], u * r2[:, :, None]
        shrink = 2 * r2 * tl.sum(z * u, axis=2) / H
    else:
        shrink = r * r2 * dot / H
    for h in range(H):
        s = _score(q, k, bias, seen, b, h, queries, keys, Q, K, H, scale, bias_batch, D, DP, BIASED)
        value, g = _load(v, b, h, keys, K, H, E, EP), _load(grad_out, b, h, queries, Q, H, E, EP)
        if HYPER:
            ds = tl.sum(z * g[:, None, :] + t * value[None, :, :], axis=2)
        else:
            ds = r * tl.dot(g, tl.trans(value), input_precision="ieee")
        if RMS:
            ds -= s * shrink
        ds = tl.where(seen, ds, 0.0)
        if OWNER == OWN_QUERIES:
            part = tl.dot(ds, _load(k, b, h, keys, K, H, D, DP), input_precision="ieee")
            _add(grad_q, part * scale, b, h, queries, Q, H, D, DP)
        if OWNER == OWN_KEYS:
            part = tl.dot(tl.trans(ds), _load(q, b, h, queries, Q, H, D, DP), input_precision="ieee")
            _add(grad_k, part * scale, b, h, keys, K, H, D, DP)
            if HYPER:
                part = tl.sum(s[:, :, None] * t, axis=0)
            else:
                part = tl.dot(tl.trans(s * r), g, input_precision="ieee")
            _add(grad_v, part, b, h, keys, K, H, E, EP)
        if OWNER == OWN_PAIRS:
            at = grad_bias + b * bias_batch + (h * Q + queries[:, None]) * K + keys[None, :]
            tl.store(at, tl.load(at, mask=seen, other=0.0) + ds, mask=seen)


@triton.jit
def backward(q, k, v, bias, key_mask, grad_out, grad_q, grad_k, grad_v, grad_bias, num_batch, Q, K, H, scale, bias_batch,
             D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
             RMS: tl.constexpr, HYPER: tl.constexpr, RELU: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
             BIASED: tl.constexpr, OWNER: tl.constexpr):  # fmt: skip
    """Add to the gradients of which this program is the owner: a block of queries or keys, or a patch of pairs."""
    first, second = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if OWNER == OWN_QUERIES:
        count = tl.cdiv(tl.minimum(K, tl.maximum(K - Q + (first + 1) * BQ, 0)) if CAUSAL else K, BK)
    elif OWNER == OWN_KEYS:
        count = tl.cdiv(Q, BQ)
    else:
        count = num_batch
    for i in range(count):
        b = i + second * 0 if OWNER == OWN_PAIRS else second
        q_block = i if OWNER == OWN_KEYS else first
        k_block = i if OWNER == OWN_QUERIES else (first if OWNER == OWN_KEYS else second)
        queries, keys = q_block * BQ + tl.arange(0, BQ), k_block * BK + tl.arange(0, BK)
        _add_gradients(q, k, v, bias, key_mask, grad_out, grad_q, grad_k, grad_v, grad_bias, b, queries, keys, Q, K, H,
                       scale, bias_batch, D, DP, E, EP, BQ, BK, RMS, HYPER, RELU, CAUSAL, MASKED, BIASED, OWNER)  # fmt: skip
