"""The attentions of Table A1 as attention implementations of Hugging Face `transformers`.

    register_attentions()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla")

`transformers` calls `attention(module, query, key, value, attention_mask, ...)` with heads before tokens, (b, h, t, d), and
keys and values of fewer heads where they are grouped. The mask of a model comes from a second registry under the same name;
without an entry there a model gets no mask at all and a causal one sees the future, so `register_attentions` fills both.
Ours is boolean: without a softmax, -inf as a score means nothing.

The output is scaled by `norm` unless the configuration of the model has `attention_output_scale`, because these models were
built for softmax attention, which averages over keys. "hyla_deep" is left out: it needs one more matrix per head (eq. 10).

The attention of nearly every pretrained model is a softmax whose weights are the latent codes of "Attention as a
Hypernetwork" (eq. 2-5). `watching` lets a handler compute the attention of a model, which can so read or change its codes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from recombine.attention.definition import Dropout
from recombine.attention.dispatch import attend
from recombine.attention.hyla import merge_masks
from recombine.attention.layer import ATTENTIONS, choose_output_scale, scale_output
from recombine.foundation.errors import InputError

NAMES = tuple(name for name, (_, value_network) in ATTENTIONS.items() if value_network != "hyper_deep")
# arguments that change the scores in a way that the kernels do not have
UNSUPPORTED = {"softcap": "a soft cap on scores", "s_aux": "attention sinks"}


class Call(NamedTuple):
    """The arguments of the kernels for one call of an attention layer: tokens before heads, no grouped heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]


def register_attentions() -> None:
    """Make every attention in `NAMES` an `attn_implementation` of `transformers`. Calling it again changes nothing."""
    interface, masks = import_interfaces()
    for name in NAMES:
        interface.register(name, make_attention(name))
        masks.register(name, make_mask)
    save_names()


def save_names() -> None:
    """Let `transformers` save the name of one of our attentions with a model's configuration, which it does for none.

    When the model is loaded, the name is restored, or refused where it is not registered: never a softmax instead.
    """
    from transformers import PreTrainedConfig

    write = PreTrainedConfig.to_dict
    if hasattr(write, "saves_names"):
        return

    @functools.wraps(write)
    def to_dict(config: Any) -> dict[str, Any]:
        name = config._attn_implementation
        return write(config) | ({"attn_implementation": name} if name in NAMES else {})

    to_dict.saves_names = True  # type: ignore[attr-defined]
    PreTrainedConfig.to_dict = to_dict  # type: ignore[method-assign, assignment]


def import_interfaces() -> tuple[Any, Any]:
    """The two registries of `transformers`: of attentions and of their masks."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError:
        raise InputError(
            "transformers with its attention interface is missing: expected version 5 or later, from the extra "
            "'huggingface' (pip install 'recombine[huggingface]')"
        ) from None
    return AttentionInterface, AttentionMaskInterface


def make_mask(*, kv_length: int, **arguments: Any) -> Tensor | None:
    """A boolean mask (b, 1, q, k), True where a query may attend; None where the causal flag of the layer is enough.

    `transformers` names the queries by `q_length` (5.x) or by `cache_position` (before); both are passed on.
    """
    from transformers.masking_utils import sdpa_mask

    num_queries = arguments["q_length"] if "q_length" in arguments else len(arguments["cache_position"])
    # with a cache, None would mean that every key is visible, also those that a static cache does not have yet
    allowed = arguments.pop("allow_is_causal_skip", True) and num_queries == kv_length
    return sdpa_mask(kv_length=kv_length, allow_is_causal_skip=allowed, **arguments)


Handler = Callable[[Call], Tensor]
"""Computes what each head of each query receives, (b, q, h, e), for one call of an attention layer."""


def make_attention(name: str, handler: Handler | None = None) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that `transformers` calls for the attention of this name, computed by `handler` if there is one."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        call = arrange_call(name, module, query, key, value, attention_mask, **options)
        codes = None
        if handler is None:
            return_codes = bool(options.get("output_attentions"))
            out, codes = attend(call.q, call.k, call.v, return_codes=return_codes, **call.options)
        else:
            out = handler(call)
        chosen = getattr(getattr(module, "config", None), "attention_output_scale", None)
        scale = choose_output_scale(chosen, call.options["normalisation"])
        out = scale_output(out, scale, call.k.shape[1], call.options["mask"], causal=call.options["causal"])
        return out.contiguous(), codes

    return attention


def arrange_call(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> Call:
    """Translate a call of `transformers` into one of the kernels."""
    for argument, meaning in UNSUPPORTED.items():
        if others.get(argument) is not None:
            raise InputError(
                f"{type(module).__name__} has {meaning} ({argument}): expected a model without, or another "
                "attn_implementation"
            )
    num_queries, width = query.shape[2], query.shape[3]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and num_queries > 1
    if causal and key.shape[2] > num_queries:  # an empty static cache: the keys that are there come first
        key, value = key[:, :, :num_queries], value[:, :, :num_queries]
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    normalisation, value_network = ATTENTIONS[name]
    bias, mask = _read_mask(attention_mask, normalisation)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    options = {
        "normalisation": normalisation,
        "value_network": value_network,
        "bias": bias,
        "mask": mask,
        "causal": causal,
        "dropout": _draw_dropout(dropout, query.device),
    }
    num_groups = query.shape[1] // key.shape[1]
    return Call(query.transpose(1, 2), _repeat_heads(key, num_groups), _repeat_heads(value, num_groups), options)


def _read_mask(attention_mask: Tensor | None, normalisation: str) -> tuple[Tensor | None, Tensor | None]:
    """The kernel's bias and mask. A boolean mask is True where a query may attend; a float mask is added to the scores."""
    if attention_mask is None:
        return None, None
    if attention_mask.dtype == torch.bool:
        return None, attention_mask
    return merge_masks([attention_mask], softmax="softmax" in normalisation)


def _repeat_heads(x: Tensor, num_groups: int) -> Tensor:
    """(b, h, t, d) to (b, t, h * num_groups, d): each head of keys or values serves a group of query heads."""
    x = x.transpose(1, 2)
    return x if num_groups == 1 else x[:, :, :, None].expand(-1, -1, -1, num_groups, -1).flatten(2, 3)


def _draw_dropout(rate: float, device: torch.device) -> Dropout | None:
    if rate == 0:
        return None
    return Dropout(rate, "elements", torch.randint(-(2**63), 2**63 - 1, (), device=device))


WATCHED = "recombine_watched"


@contextmanager
def watching(model: nn.Module, handler: Handler) -> Iterator[None]:
    """Let `handler` compute the attention of a model, with the options of the model's own attention."""
    interface, masks = import_interfaces()
    if not hasattr(model, "set_attn_implementation"):
        raise InputError(f"the model is a {type(model).__name__}: expected a model of transformers")
    config, set_implementation = cast(Any, model.config), cast(Callable[[str], None], model.set_attn_implementation)
    before = config._attn_implementation
    name = before if before in NAMES else "softmax"  # every implementation but ours is a softmax
    interface.register(WATCHED, make_attention(name, handler))
    masks.register(WATCHED, make_mask)
    set_implementation(WATCHED)
    if config._attn_implementation != WATCHED:
        raise InputError(
            f"{type(model).__name__} does not call the attention interface of transformers: expected a model that does, "
            "such as Llama, GPT-2, GPT-NeoX or BERT"
        )
    try:
        yield
    finally:
        set_implementation("eager" if before is None else before)
