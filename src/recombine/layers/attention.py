"""Multi-head attention with a choice of normalisation and value network: softmax, linear, HYLA and their ablations.

    q, k, v = heads of x W^query, context W^key, context W^value
    output  = W^out concat_h out[q,h],   out from the kernel's `attend`

The equations are in `recombine/kernels/reference.py`; `ATTENTIONS` names the rows of Table A1 of "Attention as a
Hypernetwork" (Schug et al.). All have the same parameters, except that `hyla_deep` has one more matrix per head. The papers'
models use the kernel's output as it is; `output_scale` offers other choices (see `output_scale.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from recombine.errors import InputError, check_choice, check_positive
from recombine.kernels import CodeMap, DropoutForm, Normalisation, ValueNetwork, attend, dense
from recombine.layers.cache import AttentionCache
from recombine.layers.dropout import CodeDropout
from recombine.layers.initialise import lecun_linear, lecun_normal_
from recombine.layers.isolated import attend_isolated, isolation_mask
from recombine.layers.output_scale import OutputScale, choose_output_scale, scale_output

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
