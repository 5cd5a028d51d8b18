"""Multi-head attention with a choice of normalisation and value network: softmax, linear, HYLA and their ablations.

    q, k, v = heads of x W^query, context W^key, context W^value
    output  = W^out concat_h out[q,h],   out from the kernel's `attend`

The equations are in `recombine/kernels/reference.py`; `ATTENTIONS` names the rows of Table A1 of "Attention as a
Hypernetwork" (Schug et al.). All have the same parameters, except that `hyla_deep` has one more matrix per head. The papers'
models use the kernel's output as it is; `output_scale` offers other choices (see `output_scale.py`).

Attention of several queries to one context: the last tokens see the tokens before them and themselves, not one another.

So one sequence answers many queries, each exactly as if it were alone. This is attention with the mask

    may_attend[q, k] = k is not isolated, or k = q

If each key is weighted independently, by a normalisation other than softmax, most of the masked pairs need not be computed:
the contributions of the context and of the query itself are computed separately and added.

How large the output of attention is: as it comes, divided by the number of visible keys, or normalised.

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

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from recombine.attention.cache import AttentionCache
from recombine.attention.definition import RMS_EPSILON, CodeMap, Normalisation, ValueNetwork
from recombine.attention.dense import lecun_linear, lecun_normal_
from recombine.attention.dispatch import attend, dense
from recombine.attention.dropout import CodeDropout, DropoutForm
from recombine.foundation.errors import InputError, check_choice, check_positive

WHOLE_CALL = ("causal", "dropout", "return_codes", "code_map")


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
    """Equals `kernels.attend` with `isolation_mask`, using faster calls where possible."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    given = {"normalisation": normalisation, **choices}
    apart = not normalisation.startswith("softmax") and num_isolated < num_keys
    # a bias, mask or dropout per pair, and returned codes, need the full call
    if apart and bias is None and mask is None and not any(choices.get(name) for name in WHOLE_CALL):
        shown = num_keys - num_isolated
        out, _ = attend(q, k[:, :shown], v[:, :shown], **given)
        asked = min(num_queries, num_isolated)
        alone = [tensor[:, -asked:].flatten(0, 1).unsqueeze(1) for tensor in (q, k, v)]
        own = attend(*alone, **given)[0].view(len(q), asked, *out.shape[2:])
        return torch.cat([out[:, : num_queries - asked], out[:, num_queries - asked :] + own], dim=1), None
    allowed = isolation_mask(num_queries, num_keys, num_isolated, q.device)
    return attend(q, k, v, bias=bias, mask=allowed if mask is None else mask & allowed, **given)


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


class Attention(nn.Module):
    """Self-attention, or cross-attention to a context of `context_dim` features; `kqv_dim` is the total over heads.

    In training, the fraction `dropout` of the latent codes is dropped; `kernels/dropout.py` has the two forms.
    """

    def __init__(
        self,
        embedding_dim: int,
        *,
        num_heads: int,
        kqv_dim: int,
        attention: str = "hyla",
        context_dim: int | None = None,
        dropout: float = 0.0,
        dropout_form: DropoutForm = "pairs",
        output_scale: OutputScale = "none",
    ) -> None:
        super().__init__()
        check_positive(embedding_dim=embedding_dim, num_heads=num_heads, kqv_dim=kqv_dim)
        if kqv_dim % num_heads != 0:
            raise InputError(f"kqv_dim {kqv_dim} is not divisible by num_heads {num_heads}: expected a multiple of it")
        self.attention = check_choice("attention", attention, ATTENTIONS)
        self.output_scale = choose_output_scale(output_scale, ATTENTIONS[attention][0])
        self.num_heads, self.kqv_dim = num_heads, kqv_dim
        self.context_dim = embedding_dim if context_dim is None else context_dim
        check_positive(context_dim=self.context_dim)
        # packed wherever the widths allow it, so that self-attention is one matrix product
        if self.context_dim == embedding_dim:
            self.qkv_weight = nn.Parameter(torch.empty(3 * kqv_dim, embedding_dim))
        else:
            self.query_weight = nn.Parameter(torch.empty(kqv_dim, embedding_dim))
            self.key_value_weight = nn.Parameter(torch.empty(2 * kqv_dim, self.context_dim))
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

    @property
    def packed(self) -> bool:
        """Whether queries, keys and values share one weight."""
        return hasattr(self, "qkv_weight")

    def forward(
        self,
        x: Float[Tensor, "#b t embedding"],
        context: Float[Tensor, "#b k context"] | None = None,
        *,
        bias: Float[Tensor, "*#pairs"] | None = None,
        mask: Bool[Tensor, "*#pairs"] | None = None,
        causal: bool = False,
        rotate: Rotate | None = None,
        num_queries: int | None = None,
        num_isolated: int = 0,
        code_map: CodeMap | None = None,
        return_codes: bool = True,
        cache: AttentionCache | None = None,
    ) -> tuple[Float[Tensor, "b q embedding"], Float[Tensor, "b h q k"] | None]:
        """Return the output of each query and the latent codes.

        `bias` and `mask` (True = may attend) broadcast to (b, h, q, k); `causal` masks later keys. With `num_queries=n`
        only the last n tokens of `x` are queries, and `bias` and `mask` are those of these n queries: the last block of a
        model computes only the tokens that are read. The last `num_isolated` tokens are seen only by themselves (see
        `isolated`). `rotate` receives and returns queries and keys (see `position.Rotary`); `code_map` is the kernel's hook
        on the codes. Without `return_codes` the codes are None, and a fused kernel may be used. With a `cache`, the tokens
        follow those that the cache has seen.
        """
        q, k, v = self.project(x, context, num_queries=num_queries)
        if rotate is not None:
            q, k = rotate(q, k)
        normalisation, value_network = ATTENTIONS[self.attention]
        own = attend if cache is None else cache.attend
        heads, codes = (partial(attend_isolated, num_isolated=num_isolated) if num_isolated else own)(
            q,
            k,
            v,
            normalisation=normalisation,
            value_network=value_network,
            bias=bias,
            mask=mask,
            causal=causal,
            dropout=self.dropout(),
            deep_weight=self.deep_weight,
            code_map=code_map,
            return_codes=return_codes,
        )
        if self.output_scale != "none":
            if num_isolated:
                isolated = isolation_mask(q.shape[1], k.shape[1], num_isolated, q.device)
                mask = isolated if mask is None else mask & isolated
            num_keys = k.shape[1] if cache is None else cache.length
            heads = scale_output(heads, self.output_scale, num_keys, mask, causal=causal)
        return self.output(heads.flatten(-2)), codes

    def project(
        self,
        x: Float[Tensor, "#b t embedding"],
        context: Float[Tensor, "#b k context"] | None = None,
        *,
        num_queries: int | None = None,
    ) -> tuple[Float[Tensor, "#b q h d"], Float[Tensor, "#b k h d"], Float[Tensor, "#b k h d"]]:
        """Project to the queries, keys and values of each head."""
        if context is None and num_queries in (None, x.shape[1]) and self.packed:
            q, k, v = dense(x, self.qkv_weight, self.qkv_bias).chunk(3, dim=-1)
        else:
            q, k, v = self._project_apart(x, context, num_queries)
        heads = (self.num_heads, -1)
        return q.unflatten(-1, heads), k.unflatten(-1, heads), v.unflatten(-1, heads)

    def _project_apart(
        self, x: Tensor, context: Tensor | None, num_queries: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if context is None and not self.packed:
            raise InputError(f"context is missing: expected one of context_dim = {self.context_dim} features")
        num_tokens = x.shape[1]
        num_queries = num_tokens if num_queries is None else num_queries
        if not 1 <= num_queries <= num_tokens:
            raise InputError(f"num_queries is {num_queries}: expected 1 to {num_tokens}, the number of tokens")
        query_weight, key_value_weight = self.split_weights()
        query_bias, key_value_bias = self.qkv_bias[: self.kqv_dim], self.qkv_bias[self.kqv_dim :]
        q = dense(x[:, num_tokens - num_queries :], query_weight, query_bias)
        k, v = dense(x if context is None else context, key_value_weight, key_value_bias).chunk(2, dim=-1)
        return q, k, v

    def split_weights(self) -> tuple[Float[Tensor, "kqv embedding"], Float[Tensor, "2*kqv context"]]:
        """The weights of the queries, and those of the keys stacked on those of the values."""
        if self.packed:
            return self.qkv_weight[: self.kqv_dim], self.qkv_weight[self.kqv_dim :]
        return self.query_weight, self.key_value_weight

    def extra_repr(self) -> str:
        return f"attention={self.attention}, num_heads={self.num_heads}, kqv_dim={self.kqv_dim}"
