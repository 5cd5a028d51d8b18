"""HYLA for any model: a drop-in replacement for `torch.nn.MultiheadAttention`, and the conversion of whole models.

    layer = HypernetworkAttention(embed_dim, num_heads, attention="hyla")    # constructed and called as torch's
    model = convert(model, attention="hyla")                                 # every `nn.MultiheadAttention` in it

HYLA, attention with a nonlinear value network (Schug et al., eq. 6-7), for a query q, a key k and heads h:

    s[h,q,k]  = q[q,h] . k[k,h] / sqrt(d)
    a[h,q,k]  = s[h,q,k] / sqrt(mean_h s[h,q,k]^2 + 1e-6)                 the latent code of the pair
    out[q,h]  = sum_k a[h,q,k] relu(sum_h' a[h',q,k] v[k,h'])

The other rows of Table A1 are in `definition.py`, their names in `layer.ATTENTIONS`.

Names and shapes of the parameters are those of `nn.MultiheadAttention` (`hyla_deep` adds `deep_weight`), so state dicts
are interchangeable, and `attention="softmax"` computes the same function. Differences:

- a query whose keys are all masked receives zeros (before the output projection), where softmax in torch gives NaN;
- without a softmax, a float mask of -10,000 or less means "masked", as -inf does.

In torch a bool mask is True where a query may *not* attend; a float mask is added to the scores, and -inf means "may not".
`merge_masks` converts both to a finite bias and a mask that is True where a query *may* attend. Many models use -1e9 or
`torch.finfo(...).min` for -inf. Before a softmax this is equivalent. Without one, such a *score* would dominate all others, so
every score at or below MASKED_SCORE means "may not".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recombine.attention.definition import CodeMap
from recombine.attention.dispatch import attend, check_dropout, dense
from recombine.attention.layer import (
    ATTENTIONS,
    CodeDropout,
    OutputScale,
    choose_output_scale,
    lecun_normal_,
    scale_output,
)
from recombine.foundation.errors import InputError, check_choice, check_positive, require_memory

MASKED_SCORE = -1e4


class CallError(InputError, RuntimeError, AssertionError):
    """A layer was called with wrong inputs; `nn.MultiheadAttention` raises a RuntimeError or an AssertionError then."""


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
    for torch_mask in masks:
        if torch_mask.dtype == torch.bool:
            allowed = ~torch_mask
        else:
            allowed = torch_mask > (-torch.inf if softmax else MASKED_SCORE)
            finite = torch_mask.masked_fill(~allowed, 0.0)
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
        raise CallError(f"{name} has shape {tuple(mask.shape)}: expected {' or '.join(map(str, shapes))}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise CallError(f"{name} has type {mask.dtype}: expected torch.bool or a floating-point type")


@dataclass(kw_only=True)
class CodeWatch:
    """The latent codes (b, h, q, k) of a layer's last call, and a change of those of its next one.

    >>> layer.watch = CodeWatch(code_map=torch.zeros_like)
    >>> model(inputs)
    >>> layer.watch.codes
    """

    code_map: CodeMap | None = None
    codes: Tensor | None = None


class HypernetworkAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with two more keywords, `attention` and `output_scale` (see `layer.py`)."""

    code_dropout: CodeDropout
    watch: CodeWatch | None = None
    """Reads and changes the codes, for models whose `forward` does not return them."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        attention: str = "hyla",
        output_scale: OutputScale | None = "none",
        **options: Any,
    ) -> None:
        check_choice("attention", attention, ATTENTIONS)
        check_positive(embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads != 0:
            raise InputError(
                f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}: expected a multiple of it"
            )
        if str(options.get("device")) != "meta":
            require_memory(16 * embed_dim**2, f"attention of width {embed_dim:,}")  # four projections in float32
        super().__init__(embed_dim, num_heads, *args, **options)
        self.set_attention(attention, output_scale)

    @property
    def dropout(self) -> float:
        """The fraction of latent codes that is dropped in training, independently."""
        return self.code_dropout.rate

    @dropout.setter
    def dropout(self, rate: float) -> None:
        if "code_dropout" in self._modules:
            check_dropout(rate)
            self.code_dropout.rate = rate
        else:
            self.code_dropout = CodeDropout(rate, "elements")

    def set_attention(self, attention: str, output_scale: OutputScale | None = "none") -> None:
        """Change which attention is computed. Weights that all attentions share are kept.

        Without an output scale (None), it is the one that suits models built for softmax attention.
        """
        self.attention = check_choice("attention", attention, ATTENTIONS)
        self.output_scale = choose_output_scale(output_scale, ATTENTIONS[attention][0])
        # nn.TransformerEncoder(Layer) replaces the call of this layer by a fused softmax kernel if it finds True here.
        # So this does not describe our weights: they are packed if `in_proj_weight` exists.
        self._qkv_same_embed_dim = False
        if ATTENTIONS[attention][1] != "hyper_deep":
            self.register_parameter("deep_weight", None)
        elif getattr(self, "deep_weight", None) is None:
            like = self.out_proj.weight
            deep_weight = torch.empty(
                self.num_heads, self.head_dim, self.head_dim, device=like.device, dtype=like.dtype
            )
            self.deep_weight = nn.Parameter(lecun_normal_(deep_weight))

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False
        if getattr(self, "deep_weight", None) is not None:
            lecun_normal_(self.deep_weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention.forward`; the returned weights are the latent codes.

        As in torch, `is_causal` is only a hint that `attn_mask` is causal: the mask itself is applied.
        """
        _check_inputs(self, query, key, value)
        if is_causal and attn_mask is None:
            raise CallError("attn_mask is missing: expected the causal mask that is_causal=True says it is")
        batched = query.dim() == 3
        q, k, v = (self._batch_first(x, batched) for x in self._project(query, key, value))
        normalisation, value_network = ATTENTIONS[self.attention]
        masks = arrange_masks(
            attn_mask, key_padding_mask, (q.shape[0], self.num_heads, q.shape[1], k.shape[1]), batched
        )
        bias, mask = merge_masks(masks, softmax="softmax" in normalisation)
        k, v = self._add_keys(k, self.bias_k), self._add_keys(v, self.bias_v)
        mask, watch = pad_keys(mask, k.shape[1], True), self.watch
        heads, codes = attend(
            *(features.unflatten(-1, (self.num_heads, -1)) for features in (q, k, v)),
            normalisation=normalisation,
            value_network=value_network,
            bias=pad_keys(bias, k.shape[1], 0.0),
            mask=mask,
            deep_weight=self.deep_weight,
            dropout=self.code_dropout(),
            code_map=None if watch is None else watch.code_map,
            return_codes=need_weights or watch is not None,
        )
        if watch is not None:
            watch.codes = codes
        heads = scale_output(heads, self.output_scale, k.shape[1], mask)
        output = self.out_proj(heads.flatten(-2))
        output = self._batch_first(output, batched) if batched else output[0]
        if codes is None or not need_weights:
            return output, None
        codes = codes.mean(dim=1) if average_attn_weights else codes
        return output, (codes if batched else codes[0]).to(query.dtype)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query is key and key is value and self.in_proj_weight is not None:
            q, k, v = dense(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
            return q, k, v
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = map(dense, (query, key, value), weights, biases)
        return q, k, v

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        """Move the batch to the front, or make one; for a batched tensor it is its own inverse."""
        if not batched:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _add_keys(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """Append the learned key or value of `add_bias_kv`, then the zero one of `add_zero_attn`."""
        added = [] if learned is None else [learned.to(x.dtype).expand(x.shape[0], 1, -1)]
        if self.add_zero_attn:
            added.append(torch.zeros_like(x[:, :1]))
        return torch.cat([x, *added], dim=1) if added else x

    def extra_repr(self) -> str:
        return f"attention={self.attention}, embed_dim={self.embed_dim}, num_heads={self.num_heads}"


def _check_inputs(layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.is_nested or key.is_nested or value.is_nested:
        raise CallError(
            "the input is a nested tensor: expected a padded one; convert the whole nn.TransformerEncoder, or "
            "give it enable_nested_tensor=False"
        )
    features = {"query": layer.embed_dim, "key": layer.kdim, "value": layer.vdim}
    for (name, num_features), x in zip(features.items(), (query, key, value), strict=True):
        if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != num_features:
            raise CallError(
                f"{name} has shape {tuple(x.shape)}: expected 3 dimensions (2 for all three if without batch), "
                f"the last of {num_features}"
            )
    batch = 0 if layer.batch_first else 1
    if key.shape[:-1] != value.shape[:-1] or (query.dim() == 3 and query.shape[batch] != key.shape[batch]):
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise CallError(f"query, key, value have shapes {shapes}: expected one batch size, and as many keys as values")


def convert(model: nn.Module, attention: str = "hyla", *, output_scale: OutputScale | None = None) -> nn.Module:
    """Replace every `nn.MultiheadAttention` in `model` by a `HypernetworkAttention` with the same weights.

    The parameters are the same objects, so an existing optimiser keeps working. A module used twice stays shared. A layer
    that was converted before is only set to `attention`. Returns the model (the new layer if the model itself was one).

    `output_scale` is one of `layer.OUTPUT_SCALES`. By default it is `norm`, which trained best in our measurements
    (docs/hugging_face.md), or `none` where a softmax over keys averages already. The papers' models have `none`.
    """
    choose_output_scale(output_scale, ATTENTIONS[check_choice("attention", attention, ATTENTIONS)][0])
    layers = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.MultiheadAttention)
    }
    if not layers:
        raise InputError(f"nothing to convert in {type(model).__name__}: expected at least one nn.MultiheadAttention")
    for path, layer in layers.items():
        if type(layer) not in (nn.MultiheadAttention, HypernetworkAttention):
            raise InputError(
                f"cannot convert {path or 'the model'} of type {type(layer).__name__}: expected nn.MultiheadAttention "
                "itself, as what a subclass or a parametrisation adds would be lost"
            )
    converted = {layer: _convert_layer(layer, attention, output_scale) for layer in dict.fromkeys(layers.values())}
    for path, layer in layers.items():
        parent, _, name = path.rpartition(".")
        if name:
            setattr(model.get_submodule(parent), name, converted[layer])
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            # set when the encoder was built with torch's layers: padded batches would arrive as nested tensors
            module.use_nested_tensor = False
    return converted[layers[""]] if "" in layers else model


def _convert_layer(
    layer: nn.MultiheadAttention, attention: str, output_scale: OutputScale | None
) -> HypernetworkAttention:
    if isinstance(layer, HypernetworkAttention):
        converted = layer
    else:
        # everything else, such as hooks and the training flag, is the same object as in the old layer
        converted = HypernetworkAttention.__new__(HypernetworkAttention)
        converted.__dict__.update(layer.__dict__)
        converted.__dict__["_parameters"] = layer._parameters.copy()
        converted.__dict__["_modules"] = layer._modules.copy()
        converted.dropout = converted.__dict__.pop("dropout")
    converted.set_attention(attention, output_scale)
    return converted
