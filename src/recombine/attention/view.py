"""Standard multi-head attention as a hypernetwork (Schug et al., eq. 2-5).

For a query q and a key k the latent code a[:,q,k] mixes the matrices of the heads into the value network of that pair:

    W[q,k]  = sum_h a[h,q,k] W_h^out W_h^value             (eq. 4)
    b[q,k]  = sum_h a[h,q,k] W_h^out b_h^value             (the same for the bias of the value projection)
    output[q] = sum_k (W[q,k] x[k] + b[q,k]) + b^out       (eq. 5)

So one head generates only multiples of one matrix, and H heads span at most H dimensions of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import ATTENTIONS, Attention
from recombine.foundation.errors import InputError


@dataclass(frozen=True, kw_only=True)
class HypernetworkView:
    """What one call of an attention layer generated; `output` is in the layer's own layout, the rest batch first."""

    codes: Float[Tensor, "b h q k"]
    value_matrices: Float[Tensor, "b q k out in"]
    value_biases: Float[Tensor, "b q k out"]
    output: Float[Tensor, "*layout out"]


def hypernetwork_view(
    attention: nn.MultiheadAttention | Attention, x: Tensor, context: Tensor | None = None, **options: Any
) -> HypernetworkView:
    """Return the latent codes and value networks of `attention` on `x`, and the output they reproduce.

    Keys and values come from `context`, by default from `x` itself; `options` (masks, bias, ...) go to the layer. Meant
    for small inputs: the value matrices are batch x queries x keys x out x in numbers.
    """
    _check_layer(attention)
    tokens = x if context is None else context
    if isinstance(attention, Attention):
        _, codes = attention(x, context, **options)
    else:
        _, codes = attention(x, tokens, tokens, need_weights=True, average_attn_weights=False, **options)
    swapped = isinstance(attention, nn.MultiheadAttention) and not attention.batch_first and x.dim() == 3
    batch_first = tokens.transpose(0, 1) if swapped else tokens.reshape(-1, *tokens.shape[-2:])
    value_weight, value_bias, out_weight, out_bias = _split_heads(attention)
    codes = codes.reshape(-1, *codes.shape[-3:]).to(out_weight.dtype)
    head_matrices = torch.einsum("ohd,hdi->hoi", out_weight, value_weight)
    head_biases = torch.einsum("ohd,hd->ho", out_weight, value_bias)
    value_matrices = torch.einsum("bhqk,hoi->bqkoi", codes, head_matrices)
    value_biases = torch.einsum("bhqk,ho->bqko", codes, head_biases)
    output = torch.einsum("bqkoi,bki->bqo", value_matrices, batch_first) + value_biases.sum(dim=2) + out_bias
    output = output.transpose(0, 1) if swapped else output.reshape(*x.shape[:-2], *output.shape[-2:])
    return HypernetworkView(codes=codes, value_matrices=value_matrices, value_biases=value_biases, output=output)


def _check_layer(attention: nn.MultiheadAttention | Attention) -> None:
    """Require an attention whose output is linear in the codes."""
    if isinstance(attention, nn.MultiheadAttention) and (attention.bias_k is not None or attention.add_zero_attn):
        raise InputError("the layer has add_bias_kv or add_zero_attn: expected neither, as those keys have no token")
    if not isinstance(attention, Attention | HypernetworkAttention):
        return
    name, output_scale = attention.attention, attention.output_scale
    linear = [choice for choice, (_, value_network) in ATTENTIONS.items() if value_network == "linear"]
    if name not in linear:
        raise InputError(
            f"attention {name!r} has no hypernetwork view: expected one of {', '.join(linear)}, as only the linear "
            "value network applies one generated matrix W[q,k] = sum_h a[h,q,k] W_h^out W_h^value to each pair"
        )
    if output_scale != "none":
        raise InputError(
            f"output_scale {output_scale!r} has no hypernetwork view: expected 'none', where the output is the sum over keys"
        )


def _split_heads(
    attention: nn.MultiheadAttention | Attention,
) -> tuple[Float[Tensor, "h d in"], Float[Tensor, "h d"], Float[Tensor, "out h d"], Tensor]:
    """W_h^value, b_h^value, W_h^out and b^out; absent biases are zeros."""
    if isinstance(attention, Attention):
        value_weight, bias, output = attention.qkv_weight.chunk(3)[2], attention.qkv_bias, attention.output
    else:
        packed, bias, output = attention.in_proj_weight, attention.in_proj_bias, attention.out_proj
        value_weight = attention.v_proj_weight if packed is None else packed.chunk(3)[2]
    value_bias = value_weight.new_zeros(len(value_weight)) if bias is None else bias.chunk(3)[2]
    heads = (attention.num_heads, -1)
    out_bias = value_bias.new_zeros(()) if output.bias is None else output.bias
    return value_weight.unflatten(0, heads), value_bias.unflatten(0, heads), output.weight.unflatten(1, heads), out_bias
