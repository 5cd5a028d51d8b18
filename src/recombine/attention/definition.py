"""The definition of attention: every faster kernel must agree with this file in values and gradients.

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

`attend_in_chunks` computes the same for a few queries at a time, in memory linear in the length.

Dropout of latent codes. After the normalisation a code is set to 0 with probability `rate`, and otherwise multiplied by
1 / (1 - rate). A hypernetwork uses its codes twice, so a pair that is not dropped counts 1 / (1 - rate)^2. Two forms:

    pairs       one decision per (query, key), shared by the batch and the heads (the release of "Attention as a
                Hypernetwork"): a pair is seen by all heads or by none
    elements    one decision per code (b, h, q, k), as in `torch.nn.MultiheadAttention`

Which codes are dropped is a pure function of a key, so that every kernel agrees. Numbers of 16 bits decide, four to a word of
SplitMix64 under the key: keys 4 j to 4 j + 3 of row r share the word at counter r * ceil(k / 4) + j, the lowest 16 bits
first; a code is dropped if its number is below rate * 2^16. Rows are numbered q (pairs) or (b * H + h) * Q + q (elements).
`cpu/cpu_mask.h` computes the same bits in C.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recombine.random import advance_key, mix

Normalisation = Literal["none", "softmax", "rms_head", "softmax_rms_head"]
ValueNetwork = Literal["linear", "hyper_linear", "hyper_relu", "hyper_deep", "nonlinear_value"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
VALUE_NETWORKS: tuple[ValueNetwork, ...] = get_args(ValueNetwork)
CodeMap = Callable[[Tensor], Tensor]
DropoutForm = Literal["pairs", "elements"]
DROPOUT_FORMS: tuple[DropoutForm, ...] = get_args(DropoutForm)

RMS_EPSILON = 1e-6
MAX_CHUNK_ELEMENTS = 1 << 24
"""Elements of the largest tensor of a chunk, if `chunk_size` is not given."""


class ChunkRows(NamedTuple):
    """The first query of a chunk, and the numbers of queries and keys of the whole call."""

    first_query: int
    num_queries: int
    num_keys: int


class Dropout(NamedTuple):
    """Dropout of codes. The key is a tensor, so that a compiled model does not depend on its value.

    `first_row` is the number of the first row of the batch in a larger batch of which it is a part.
    """

    rate: float
    form: DropoutForm
    key: Int[Tensor, ""]
    rows: ChunkRows | None = None
    first_row: int = 0


class AttentionOptions(NamedTuple):
    """What is computed from q, k and v.

    `bias` is added to the scaled scores; `mask` is True where a query may attend; both broadcast to (b, h, q, k). `causal`
    also masks later keys, with queries aligned at the end: the last query sees every key. `deep_weight`, (h, e, e), is W of
    `hyper_deep`.
    """

    normalisation: Normalisation
    value_network: ValueNetwork
    bias: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    dropout: Dropout | None = None
    deep_weight: Tensor | None = None


def attend(
    q: Float[Tensor, "b q h d"],
    k: Float[Tensor, "b k h d"],
    v: Float[Tensor, "b k h e"],
    options: AttentionOptions,
    code_map: CodeMap | None = None,
) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"]]:
    """Return what each head of each query receives, and the latent codes as they were used.

    The code of a masked pair is 0, so a query whose keys are all masked receives zeros. `code_map` changes the codes before
    they are used. The codes have the precision of the scores: at least float32.
    """
    mask = options.mask
    if options.causal:
        earlier = causal_mask(q.shape[1], k.shape[1], q.device)
        mask = earlier if mask is None else mask & earlier
    codes = normalise(score(q, k, options.bias), options.normalisation, mask)
    if options.dropout is not None:
        codes = drop(codes, options.dropout)
    if code_map is not None:
        codes = code_map(codes)
    return apply_value_network(codes.to(v.dtype), v, options.value_network, options.deep_weight), codes


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "q k"]:
    """True where the key is not later than the query; the last query is as late as the last key."""
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return everything.tril(diagonal=num_keys - num_queries)


def is_key_mask(mask: Tensor) -> bool:
    """Whether a mask is the same for every head and query, as that of padded batches is."""
    return all(size == 1 for size in mask.shape[-3:-1])


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


def move_to_first_row(dropout: Dropout, num_heads: int, num_queries: int, num_keys: int) -> Dropout:
    """The same dropout with a key for which the first row of the batch is row 0."""
    if dropout.first_row == 0 or dropout.form == "pairs":
        return dropout._replace(first_row=0)
    counter = dropout.first_row * num_heads * num_queries * -(-num_keys // 4)
    return dropout._replace(first_row=0, key=advance_key(dropout.key, counter))


def dropout_threshold(rate: float) -> int:
    """Codes whose 16 bits are below it are dropped."""
    return round(rate * 65536)


def dropout_scale(rate: float) -> float:
    """The factor of the codes that are not dropped."""
    return 1 / (1 - rate)


def drop(codes: Float[Tensor, "b h q k"], dropout: Dropout) -> Float[Tensor, "b h q k"]:
    """Set some codes to 0 and scale the others."""
    dropped = ~dropout_mask(dropout, codes.shape, codes.device)
    return (codes * dropout_scale(dropout.rate)).masked_fill(dropped, 0.0)


def dropout_mask(dropout: Dropout, shape: torch.Size, device: torch.device) -> Bool[Tensor, "#b #h q k"]:
    """False for the codes, of shape (b, h, q, k), that are dropped."""
    b, h, num_queries, num_keys = shape
    first, all_queries, all_keys = dropout.rows or (0, num_queries, num_keys)
    rows = torch.arange(first, first + num_queries, device=device).view(1, 1, -1, 1)
    if dropout.form == "elements":
        rows = rows + torch.arange(b * h, device=device).view(b, h, 1, 1) * all_queries
    words = torch.arange(-(-num_keys // 4), device=device)
    bits = mix(rows * -(-all_keys // 4) + words, dropout.key.to(device))
    numbers = torch.stack([(bits >> 16 * i) & 0xFFFF for i in range(4)], dim=-1).flatten(-2)
    return numbers[..., :num_keys] >= dropout_threshold(dropout.rate)


def differentiate_definition(
    function: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor | None], *grad_outputs: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients of a fused kernel's inputs from its definition, for a backward pass that is itself differentiated.

    Kernels have first derivatives only. Their backward passes call this if gradients are enabled (`create_graph=True`).
    """
    # aliases, since one input may depend on another, through which no gradient may flow here
    aliases = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    wanted = [alias for alias in aliases if alias is not None and alias.requires_grad]
    outputs = function(*aliases)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    used, grads = zip(
        *((out, grad) for out, grad in zip(outputs, grad_outputs, strict=True) if grad is not None), strict=True
    )
    found = iter(torch.autograd.grad(used, wanted, grads, create_graph=True, allow_unused=True))
    return tuple(next(found) if alias is not None and alias.requires_grad else None for alias in aliases)


def differentiate_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: AttentionOptions, grad_out: Tensor
) -> tuple[Tensor | None, ...]:
    """The same for attention: gradients of q, k, v and bias."""

    def define(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return attend(q, k, v, options._replace(bias=bias))[0]

    return differentiate_definition(define, (q, k, v, bias), grad_out)


def attend_in_chunks(
    q: Float[Tensor, "b q h d"],
    k: Float[Tensor, "b k h d"],
    v: Float[Tensor, "b k h e"],
    options: AttentionOptions,
    chunk_size: int | None = None,
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives, `chunk_size` queries at a time, computed again in the backward pass.

    Queries do not see each other, so `attend` applies to one chunk of them after another, each under
    `torch.utils.checkpoint`: only inputs and outputs stay in memory between the passes.
    """
    if chunk_size is None:
        chunk_size = choose_chunk_size(q, k, v)
    num_queries, num_keys = q.shape[1], k.shape[1]
    starts = range(0, num_queries, chunk_size)
    # `split`, for the gradient of many slices would be as many tensors of full size
    bias_rows, mask_rows = (_split_queries(pairs, chunk_size, len(starts)) for pairs in (options.bias, options.mask))
    outputs = []
    for start, queries, bias, mask in zip(starts, q.split(chunk_size, dim=1), bias_rows, mask_rows, strict=True):
        num_visible = num_keys - num_queries + start + queries.shape[1] if options.causal else num_keys
        if num_visible <= 0:
            outputs.append(queries.new_zeros(*queries.shape[:3], v.shape[3]))
            continue
        dropout = options.dropout and options.dropout._replace(rows=ChunkRows(start, num_queries, num_keys))
        arguments = (queries, k, v, options._replace(bias=bias, mask=mask, dropout=dropout), num_visible)
        if torch.is_grad_enabled():
            outputs.append(checkpoint(_attend_chunk, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(_attend_chunk(*arguments))
    return torch.cat(outputs, dim=1)


def choose_chunk_size(q: Tensor, k: Tensor, v: Tensor) -> int:
    """As many queries as bound the codes, and the hidden units of a hypernetwork, by `MAX_CHUNK_ELEMENTS`."""
    per_query = q.shape[0] * k.shape[1] * max(q.shape[2], v.shape[3])
    return max(1, min(q.shape[1], MAX_CHUNK_ELEMENTS // per_query))


def _attend_chunk(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions, num_visible: int) -> Tensor:
    bias, mask = (_first_keys(pairs, num_visible) for pairs in (options.bias, options.mask))
    return attend(q, k[:, :num_visible], v[:, :num_visible], options._replace(bias=bias, mask=mask))[0]


def _split_queries(pairs: Tensor | None, chunk_size: int, num_chunks: int) -> Iterable[Tensor | None]:
    """The rows of each chunk of queries, of a bias or mask that broadcasts to (b, h, q, k)."""
    if pairs is None or pairs.dim() < 2 or pairs.shape[-2] == 1:
        return itertools.repeat(pairs, num_chunks)
    return pairs.split(chunk_size, dim=-2)


def _first_keys(pairs: Tensor | None, num_keys: int) -> Tensor | None:
    return pairs if pairs is None or pairs.dim() == 0 or pairs.shape[-1] == 1 else pairs[..., :num_keys]
