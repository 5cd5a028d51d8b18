"""Multi-head attention with a choice of normalisation and value network, and its parts: dropout of codes, positions, scale.

    q, k, v = heads of x W^query, context W^key, context W^value
    output  = W^out concat_h out[q,h],   out from `dispatch.attend`

The equations are in `definition.py`; `ATTENTIONS` names the rows of Table A1 of "Attention as a Hypernetwork" (Schug et al.).
All have the same parameters, except that `hyla_deep` has one more matrix per head. Weights are LeCun-normal: truncated, of
variance 1/fan_in; biases are 0 (attention paper, app. C).

Scale of the output. Softmax attention averages over keys. Every other normalisation sums over them, so the output grows with
the length of the sequence. With n visible keys, the choices are

    none         out                                       the papers' models
    sqrt_keys    out / sqrt(n)                             a sum of n independent terms has the size of one
    keys         out / n                                   the mean over keys
    norm         out / sqrt(mean_{h,e} out^2 + 1e-6)       RMS norm over all heads of a query, no learned scale

A key that the mask hides does not count. A query without any visible key has output 0 under every choice.
`benchmarks/output_scale.py` measures which of them trains best in a plain `nn.TransformerEncoder`.

Isolated tokens: the last `num_isolated` tokens see the tokens before them and themselves, not one another, so that one
sequence answers many queries, each exactly as if it were alone. This is attention with the mask

    may_attend[q, k] = k is not isolated, or k = q

If each key is weighted independently, by a normalisation other than softmax, most of the masked pairs need not be computed:
the contributions of the context and of the query itself are computed separately and added.

Positions: the T5 relative bias on scores, and the rotary embedding of queries and keys. Both align queries at the end: with n
queries and T keys, the first query is at position T - n.

Relative bias (Raffel et al. 2020, one-directional): bias[h,q,k] = table[bucket(n), h] with n = max(q - k, 0), so that
all later keys share bucket 0. With m = num_buckets // 2,

    bucket(n) = n                                                                        for n < m
              = min(m + floor(log(n/m) / log(max_distance/m) * (num_buckets - m)), num_buckets - 1)   beyond

Rotary embedding (Su et al. 2021): features i and i + d/2 of a head are the two coordinates of a point, rotated by the
angle position * base^(-2i/d); scores then depend on positions only through their difference.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from recombine.attention.cache import AttentionCache
from recombine.attention.definition import RMS_EPSILON, CodeMap, Dropout, DropoutForm, Normalisation, ValueNetwork
from recombine.attention.dispatch import attend, check_dropout, dense
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.random import hash_key

AttentionName = Literal[
    "softmax",
    "linear",
    "hyla",
    "linear_rms_head",
    "linear_rms_head_nonlinear_value",
    "hyla_no_rms_head",
    "hyla_no_nonlinearity",
    "hyla_no_nonlinearity_no_rms_head",
    "hyla_softmax_no_rms_head",
    "hyla_deep",
    "hyla_softmax",
]
ATTENTIONS: dict[str, tuple[Normalisation, ValueNetwork]] = {
    "softmax": ("softmax", "linear"),
    "linear": ("none", "linear"),
    "hyla": ("rms_head", "hyper_relu"),
    "linear_rms_head": ("rms_head", "linear"),
    "linear_rms_head_nonlinear_value": ("rms_head", "nonlinear_value"),
    "hyla_no_rms_head": ("none", "hyper_relu"),
    "hyla_no_nonlinearity": ("rms_head", "hyper_linear"),
    "hyla_no_nonlinearity_no_rms_head": ("none", "hyper_linear"),
    "hyla_softmax_no_rms_head": ("softmax", "hyper_relu"),
    "hyla_deep": ("rms_head", "hyper_deep"),
    "hyla_softmax": ("softmax_rms_head", "hyper_relu"),
}

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

OutputScale = Literal["none", "sqrt_keys", "keys", "norm"]
OUTPUT_SCALES: tuple[OutputScale, ...] = get_args(OutputScale)
SOFTMAX_LIKE_SCALE: OutputScale = "norm"  # trained best in models that were built for softmax attention
OPTIONS_OF_PAIRS = ("causal", "dropout", "return_codes", "code_map")


class Attention(nn.Module):
    """Self-attention, or cross-attention to a context of the same width; `kqv_dim` is the total over heads.

    In training, the fraction `dropout` of the latent codes is dropped, in one of the forms of `definition.py`. The last
    `num_isolated` tokens are seen only by themselves.
    """

    def __init__(
        self,
        embedding_dim: int,
        *,
        num_heads: int,
        kqv_dim: int,
        attention: str = "hyla",
        dropout: float = 0.0,
        dropout_form: DropoutForm = "pairs",
        output_scale: OutputScale = "none",
        num_isolated: int = 0,
    ) -> None:
        super().__init__()
        check_positive(embedding_dim=embedding_dim, num_heads=num_heads, kqv_dim=kqv_dim)
        if kqv_dim % num_heads != 0:
            raise InputError(f"kqv_dim {kqv_dim} is not divisible by num_heads {num_heads}: expected a multiple of it")
        self.attention = check_choice("attention", attention, ATTENTIONS)
        self.output_scale = choose_output_scale(output_scale, ATTENTIONS[attention][0])
        self.num_heads, self.kqv_dim, self.num_isolated = num_heads, kqv_dim, num_isolated
        # one weight, so that self-attention is one matrix product
        self.qkv_weight = nn.Parameter(torch.empty(3 * kqv_dim, embedding_dim))
        self.qkv_bias = nn.Parameter(torch.empty(3 * kqv_dim))
        self.deep_weight: nn.Parameter | None = None
        if ATTENTIONS[attention][1] == "hyper_deep":
            head_dim = kqv_dim // num_heads
            self.deep_weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.output = lecun_linear(kqv_dim, embedding_dim)
        self.dropout = CodeDropout(dropout, dropout_form)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights: LeCun normal, with zero biases."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.endswith("weight"):
                lecun_normal_(parameter)
        lecun_normal_(self.output.weight)
        nn.init.zeros_(self.qkv_bias)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        x: Float[Tensor, "#b q embedding"],
        context: Float[Tensor, "#b k embedding"] | None = None,
        *,
        bias: Float[Tensor, "*#pairs"] | None = None,
        mask: Bool[Tensor, "*#pairs"] | None = None,
        causal: bool = False,
        rotate: Rotate | None = None,
        code_map: CodeMap | None = None,
        return_codes: bool = True,
        cache: AttentionCache | None = None,
    ) -> tuple[Float[Tensor, "b q embedding"], Float[Tensor, "b h q k"] | None]:
        """Return the output of each query and the latent codes.

        `bias` and `mask` (True = may attend) broadcast to (b, h, q, k); `causal` masks later keys, with queries aligned at the
        end of the context. `rotate` maps queries and keys (see `Rotary`), `code_map` the latent codes. Without `return_codes`
        the codes are None, and a fused kernel may be used. With a `cache`, the tokens follow those that the cache has seen.
        """
        heads, codes = self.mix(
            *self.project(x, context),
            bias=bias,
            mask=mask,
            causal=causal,
            rotate=rotate,
            code_map=code_map,
            return_codes=return_codes,
            cache=cache,
        )
        return self.output(heads), codes

    def mix(
        self,
        q: Float[Tensor, "#b q h d"],
        k: Float[Tensor, "#b k h d"],
        v: Float[Tensor, "#b k h d"],
        *,
        mask: Bool[Tensor, "*#pairs"] | None = None,
        causal: bool = False,
        rotate: Rotate | None = None,
        cache: AttentionCache | None = None,
        **choices: Any,
    ) -> tuple[Float[Tensor, "b q kqv"], Float[Tensor, "b h q keys"] | None]:
        """What all heads of each query receive, and the latent codes; options as in `forward`."""
        if rotate is not None:
            q, k = rotate(q, k)
        normalisation, value_network = ATTENTIONS[self.attention]
        options: dict[str, Any] = {
            "normalisation": normalisation,
            "value_network": value_network,
            "mask": mask,
            "causal": causal,
            "dropout": self.dropout(),
            "deep_weight": self.deep_weight,
            **choices,
        }
        if cache is not None:
            heads, codes = cache.attend(q, k, v, **options)
        elif self.num_isolated:
            heads, codes = attend_isolated(q, k, v, num_isolated=self.num_isolated, **options)
        else:
            heads, codes = attend(q, k, v, **options)
        if self.output_scale != "none":
            if self.num_isolated:
                isolated = isolation_mask(q.shape[1], k.shape[1], self.num_isolated, q.device)
                mask = isolated if mask is None else mask & isolated
            num_keys = k.shape[1] if cache is None else cache.length
            heads = scale_output(heads, self.output_scale, num_keys, mask, causal=causal)
        return heads.flatten(-2), codes

    def project(
        self, x: Float[Tensor, "#b q embedding"], context: Float[Tensor, "#b k embedding"] | None = None
    ) -> tuple[Float[Tensor, "#b q h d"], Float[Tensor, "#b k h d"], Float[Tensor, "#b k h d"]]:
        """Project to the queries, keys and values of each head."""
        if context is None:
            q, k, v = dense(x, self.qkv_weight, self.qkv_bias).chunk(3, dim=-1)
        else:
            q = dense(x, self.qkv_weight[: self.kqv_dim], self.qkv_bias[: self.kqv_dim])
            k, v = dense(context, self.qkv_weight[self.kqv_dim :], self.qkv_bias[self.kqv_dim :]).chunk(2, dim=-1)
        q, k, v = self.split_heads(q, k, v)
        return q, k, v

    def split_heads(self, *projections: Float[Tensor, "_ _ kqv"]) -> tuple[Float[Tensor, "_ _ h d"], ...]:
        """Queries, keys or values of each head."""
        return tuple(projection.unflatten(-1, (self.num_heads, -1)) for projection in projections)

    def extra_repr(self) -> str:
        return f"attention={self.attention}, num_heads={self.num_heads}, kqv_dim={self.kqv_dim}"


def isolation_mask(
    num_queries: int, num_keys: int, num_isolated: int, device: torch.device | None = None
) -> Bool[Tensor, "q k"]:
    """True where a query may attend; queries are aligned at the end."""
    keys = torch.arange(num_keys, device=device)
    queries = torch.arange(num_keys - num_queries, num_keys, device=device)
    return (keys < num_keys - num_isolated) | (keys == queries[:, None])


def attend_isolated(
    q: Float[Tensor, "b q h d"],
    k: Float[Tensor, "b k h d"],
    v: Float[Tensor, "b k h e"],
    *,
    num_isolated: int,
    normalisation: str,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    **choices: Any,
) -> tuple[Float[Tensor, "b q h e"], Float[Tensor, "b h q k"] | None]:
    """`dispatch.attend` with `isolation_mask`, by faster calls where possible."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    options = {"normalisation": normalisation, **choices}
    is_sum = not normalisation.startswith("softmax") and num_isolated < num_keys
    # a bias, mask or dropout of pairs, and returned codes, need all pairs
    if is_sum and bias is None and mask is None and not any(choices.get(name) for name in OPTIONS_OF_PAIRS):
        num_shared = num_keys - num_isolated
        out, _ = attend(q, k[:, :num_shared], v[:, :num_shared], **options)
        num_alone = min(num_queries, num_isolated)
        alone = [tensor[:, -num_alone:].flatten(0, 1).unsqueeze(1) for tensor in (q, k, v)]
        own = attend(*alone, **options)[0].view(len(q), num_alone, *out.shape[2:])
        first = num_queries - num_alone
        return torch.cat([out[:, :first], out[:, first:] + own], dim=1), None
    allowed = isolation_mask(num_queries, num_keys, num_isolated, q.device)
    return attend(q, k, v, bias=bias, mask=allowed if mask is None else mask & allowed, **options)


def choose_output_scale(output_scale: str | None, normalisation: Normalisation) -> OutputScale:
    """Check a choice; without one, the scale for models that were built for softmax attention."""
    if output_scale is None:
        # a softmax over keys is an average already
        return "none" if normalisation == "softmax" else SOFTMAX_LIKE_SCALE
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
    """Scale what each head of each query received from `num_keys` keys under a mask."""
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


class CodeDropout(nn.Module):
    """Dropout of the codes of one layer: returns what to drop in this call, or None in evaluation.

    In your own training loop, each call draws a new key from torch's generator, so `torch.manual_seed` controls it. Our trainer
    sets the keys with `DropoutKeys`. A key is a tensor that is changed in place, so a compiled model is not compiled again.
    """

    key: Int[Tensor, ""]

    def __init__(self, rate: float = 0.0, form: DropoutForm = "elements") -> None:
        super().__init__()
        check_dropout(rate, form)
        self.rate, self.form = rate, form
        self.has_key = False
        self.first_row = 0  # of this process, in the global batch
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self) -> Dropout | None:
        if not self.training or self.rate == 0:
            return None
        # a copy, since the backward pass may need it after the next step has begun
        key = self.key.clone() if self.has_key else torch.randint(-(2**63), 2**63 - 1, (), device=self.key.device)
        return Dropout(self.rate, self.form, key, first_row=self.first_row)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, form={self.form}"


class DropoutKeys:
    """The dropout of all layers of a model, in the order of its modules.

    `first_row` is the number of the model's first row in the global batch, for the form `elements`.
    """

    def __init__(self, model: nn.Module, *, first_row: int = 0) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, CodeDropout)]
        for layer in self.layers:
            layer.first_row = first_row

    @contextlib.contextmanager
    def at(self, seed: int, step: int) -> Iterator[None]:
        """Make the keys a function of the seed, the step and the number of the layer, so that a resumed run drops the same."""
        active = [(number, layer) for number, layer in enumerate(self.layers) if layer.rate > 0]
        for number, layer in active:
            layer.key.fill_(hash_key("dropout", seed, step, number))
            layer.has_key = True
        try:
            yield
        finally:
            for _, layer in active:
                layer.has_key = False


# standard deviation of a standard normal truncated at +-2; dividing by it restores unit variance
TRUNCATED_DEVIATION = 0.87962566103423978


@torch.no_grad()
def lecun_normal_(weight: Tensor, fan_in: int | None = None) -> Tensor:
    """Fill `weight` in place; `fan_in` is the last dimension unless given."""
    deviation = (fan_in or weight.shape[-1]) ** -0.5 / TRUNCATED_DEVIATION
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class Dense(nn.Linear):
    """`nn.Linear` by the fastest product."""

    def forward(self, input: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch output"]:
        return dense(input, self.weight, self.bias)


def lecun_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with LeCun weights and zero bias."""
    layer = Dense(in_features, out_features, bias=bias)
    lecun_normal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def relative_bucket(distance: int, *, num_buckets: int, max_distance: int) -> int:
    """The bucket of a distance. If the logarithm is within rounding error of a boundary, exact integers decide."""
    num_exact = num_buckets // 2
    if distance < num_exact:
        return distance
    if distance >= max_distance or num_exact == 0:
        return num_buckets - 1
    num_logarithmic = num_buckets - num_exact
    position = math.log(distance / num_exact) / math.log(max_distance / num_exact) * num_logarithmic
    step = math.floor(position)
    border = round(position)
    if abs(position - border) < 1e-9:
        # (distance / m)^L >= (max_distance / m)^border, in whole numbers
        reached = distance**num_logarithmic * num_exact**border >= max_distance**border * num_exact**num_logarithmic
        step = border if reached else border - 1
    return min(num_exact + step, num_buckets - 1)


class RelativeBias(nn.Module):
    """One learned bias per head and bucket of distances, added to the scores."""

    buckets: Int[Tensor, " distance"]

    def __init__(self, num_heads: int, *, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        if max_distance <= num_buckets // 2:
            raise InputError(
                f"max_distance is {max_distance}: expected more than num_buckets // 2 = {num_buckets // 2}, "
                "where the logarithmic buckets begin"
            )
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        # every distance from max_distance on is in the last bucket, so this short table works for any sequence length
        buckets = [
            relative_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
            for distance in range(max_distance + 1)
        ]
        self.register_buffer("buckets", torch.tensor(buckets), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new table of variance 1 / num_buckets."""
        nn.init.normal_(self.table, std=self.table.shape[0] ** -0.5)

    def forward(self, num_queries: int, num_keys: int) -> Float[Tensor, "h q k"]:
        """The bias of the last `num_queries` of `num_keys` positions."""
        keys = torch.arange(num_keys, device=self.table.device)
        queries = torch.arange(num_keys - num_queries, num_keys, device=self.table.device)
        distances = (queries[:, None] - keys[None, :]).clamp(0, self.max_distance)
        return functional.embedding(self.buckets[distances], self.table).permute(2, 0, 1)


class Rotary(nn.Module):
    """Rotate queries and keys by their positions. No parameters, and no buffer that a change of precision could affect."""

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        check_positive(head_dim=head_dim)
        if head_dim % 2 != 0:
            raise InputError(f"head_dim is {head_dim}: expected an even number, because features are rotated in pairs")
        self.head_dim, self.base = head_dim, base

    def forward(
        self, q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], first_key: int = 0
    ) -> tuple[Float[Tensor, "b q h d"], Float[Tensor, "b k h d"]]:
        """Return the rotated queries and keys; the keys begin at position `first_key` and end where the queries end."""
        return self._rotate(q, first_key + k.shape[1] - q.shape[1]), self._rotate(k, first_key)

    def _rotate(self, x: Float[Tensor, "b t h d"], offset: int) -> Float[Tensor, "b t h d"]:
        # bf16 cannot distinguish position 257 from 256: angles need at least float32
        precise = torch.promote_types(x.dtype, torch.float32)
        positions = torch.arange(offset, offset + x.shape[1], device=x.device, dtype=precise)
        exponents = torch.arange(0, self.head_dim, 2, device=x.device, dtype=precise) / self.head_dim
        angles = (positions[:, None] * self.base**-exponents)[:, None, :]
        cosine, sine = angles.cos(), angles.sin()
        first, second = x.to(precise).chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1).to(x.dtype)
