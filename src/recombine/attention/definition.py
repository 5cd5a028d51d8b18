"""The definition of attention: every fused kernel must agree with this file in values and gradients.

Attention as a hypernetwork (Schug et al., eq. 1-7 and 10). The scores of a query-key pair, one per head,

    s[h,q,k] = q[q,h] . k[k,h] / sqrt(d) + bias[h,q,k]            (eq. 1)

are normalised to a[h,q,k]. The vector over heads a[:,q,k] is the *latent code* of the pair: it configures the value
network that maps the value of key k to its contribution to query q. Two independent choices give every attention of
Table A1.

The normalisation of the scores:

    none                a = s                                     linear attention
    softmax             a = softmax over keys of s
    rms_head            a = s / sqrt(mean_h s^2 + 1e-6)           over heads, no learned scale
    softmax_rms_head    softmax over keys, then rms over heads    (our own reading of the row "HYLA + softmax")

The value network (the output projection, outside this file, is its last layer):

    linear              out[q,h] = sum_k a[h,q,k] v[k,h]                                        (eq. 2-5)
    nonlinear_value     out[q,h] = sum_k a[h,q,k] relu(v[k,h])
    hyper_linear        out[q,h] = sum_k a[h,q,k] z[q,k]   with z[q,k] = sum_h a[h,q,k] v[k,h]
    hyper_relu          the same with z[q,k] = relu(sum_h a[h,q,k] v[k,h])                      (eq. 6-7: HYLA)
    hyper_deep          the same with z[q,k] = relu(sum_h a[h,q,k] W[h] relu(sum_h a[h,q,k] v[k,h]))    (eq. 10)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from recombine.attention.checks import open_door
from recombine.attention.dropout import Dropout, drop
from recombine.foundation.errors import InputError, check_choice

Normalisation = Literal["none", "softmax", "rms_head", "softmax_rms_head"]
ValueNetwork = Literal["linear", "hyper_linear", "hyper_relu", "hyper_deep", "nonlinear_value"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
VALUE_NETWORKS: tuple[ValueNetwork, ...] = get_args(ValueNetwork)
CodeMap = Callable[[Tensor], Tensor]

RMS_EPSILON = 1e-6


def attend(
    q: Float[Tensor, "#b q #h d"],
    k: Float[Tensor, "#b k #h d"],
    v: Float[Tensor, "#b k #h e"],
    *,
    normalisation: Normalisation,
    value_network: ValueNetwork,
    bias: Float[Tensor, "*#pairs"] | None = None,
    mask: Bool[Tensor, "*#pairs"] | None = None,
    causal: bool = False,
    dropout: Dropout | None = None,
    deep_weight: Float[Tensor, "h e e"] | None = None,
    code_map: CodeMap | None = None,
) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"]]:
    """Return what each head of each query receives, and the latent codes as they were used.

    Batch and heads of q, k and v broadcast: a size of 1 is shared. `bias` is added to the scaled scores; `mask` is True
    where a query may attend; both broadcast to (b, h, q, k). `causal` also masks later keys, with queries aligned at the
    end: the last query sees every key. The code of a masked pair is 0, so a query whose keys are all masked receives
    zeros. `dropout` sets some codes to 0 and scales the others (see `dropout.py`). `deep_weight` is W of `hyper_deep`.
    `code_map` changes the codes before they are used: the one hook for causal interventions, such as zeroing a head or
    swapping the codes of two queries. The codes have the precision of the scores: at least float32.
    """
    check_choice("normalisation", normalisation, NORMALISATIONS)
    check_choice("value network", value_network, VALUE_NETWORKS)
    if (value_network == "hyper_deep") != (deep_weight is not None):
        given = "missing" if deep_weight is None else "given"
        raise InputError(f"deep_weight is {given} for {value_network}: expected for hyper_deep, and only there")
    q, k, v = open_door(q, k, v, bias=bias, mask=mask, dropout=dropout, deep_weight=deep_weight)
    if causal:
        earlier = causal_mask(q.shape[1], k.shape[1], q.device)
        mask = earlier if mask is None else mask & earlier
    codes = normalise(score(q, k, bias), normalisation, mask)
    if dropout is not None:
        codes = drop(codes, dropout)
    if code_map is not None:
        codes = code_map(codes)
    return apply_value_network(codes.to(v.dtype), v, value_network, deep_weight), codes


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "q k"]:
    """True where the key is not later than the query; the last query is as late as the last key."""
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return everything.tril(diagonal=num_keys - num_queries)


def score(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], bias: Float[Tensor, "*#pairs"] | None = None
) -> Float[Tensor, "b h q k"]:
    """Scaled products of queries and keys plus the bias, in float32 or better."""
    precise = torch.promote_types(q.dtype, torch.float32)
    # autocast would round the scores to bf16, and the small differences between heads are what the codes carry
    with nullcontext() if q.is_meta else torch.autocast(q.device.type, enabled=False):
        scores = torch.einsum("bqhd,bkhd->bhqk", q.to(precise) * q.shape[-1] ** -0.5, k.to(precise))
    return scores if bias is None else scores + bias


def normalise(
    scores: Float[Tensor, "b h q k"], normalisation: Normalisation, mask: Bool[Tensor, "*#pairs"] | None = None
) -> Float[Tensor, "b h q k"]:
    """Turn scores into latent codes, with 0 for masked pairs."""
    if normalisation in ("softmax", "softmax_rms_head"):
        codes = _softmax_over_keys(scores, mask)
    else:
        codes = scores if mask is None else scores.masked_fill(~mask, 0.0)
    if normalisation in ("rms_head", "softmax_rms_head"):
        codes = codes * torch.rsqrt(codes.square().mean(dim=1, keepdim=True) + RMS_EPSILON)
    return codes


def apply_value_network(
    codes: Float[Tensor, "b h q k"],
    v: Float[Tensor, "b k h e"],
    value_network: ValueNetwork,
    deep_weight: Float[Tensor, "h e e"] | None = None,
) -> Float[Tensor, "b q h e"]:
    """Send the values through the network that each pair's code configures, and sum over keys."""
    if value_network == "linear":
        return torch.einsum("bhqk,bkhe->bqhe", codes, v)
    if value_network == "nonlinear_value":
        return torch.einsum("bhqk,bkhe->bqhe", codes, v.relu())
    hidden = torch.einsum("bhqk,bkhe->bqke", codes, v)
    if value_network != "hyper_linear":
        hidden = hidden.relu()
    if value_network == "hyper_deep":
        hidden = torch.einsum("bhqk,bqke,hfe->bqkf", codes, hidden, deep_weight).relu()
    return torch.einsum("bhqk,bqke->bqhe", codes, hidden)


def _softmax_over_keys(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(dim=-1)
    # a row of nothing but -inf has no softmax: leave such a row as it is and set its codes to 0 afterwards, so that
    # neither its values nor its gradients are NaN
    some_key = mask.any(dim=-1, keepdim=True)
    return scores.masked_fill(~mask & some_key, -torch.inf).softmax(dim=-1).masked_fill(~mask, 0.0)
