"""Stand in for the attention of a `transformers` model while it runs: see its latent codes, or change them.

The attention of nearly every pretrained model is a softmax whose weights are the latent codes of "Attention as a
Hypernetwork" (eq. 2-5). `watching` switches a model to an implementation that hands every call to a handler, and
switches it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from recombine.errors import InputError
from recombine.integrations.huggingface_attention import (
    Call,
    arrange_call,
    finish_call,
    import_interfaces,
    make_mask,
)
from recombine.kernels import CodeMap, attend
from recombine.layers.attention import ATTENTIONS

WATCHED = "recombine_watched"

Handler = Callable[[nn.Module, Call], Tensor]
"""Computes what each head of each query receives, (b, q, h, e), for one call of an attention layer."""


class _Watch:
    """The handler in charge, and the attention that the model had."""

    handler: Handler | None = None
    attention: str = "softmax"


def attention_of(model: nn.Module) -> str:
    """The attention that a model computes, by its name in `ATTENTIONS`; every implementation but ours is a softmax."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return name if name in ATTENTIONS else "softmax"


@contextmanager
def watching(model: nn.Module, handler: Handler, attention: str | None = None) -> Iterator[None]:
    """Let `handler` compute the attention of a model inside a `with` block: its own, unless another is named."""
    interface, masks = import_interfaces()
    interface.register(WATCHED, _watched_attention)
    masks.register(WATCHED, make_mask)
    if not hasattr(model, "set_attn_implementation"):
        raise InputError(f"the model is a {type(model).__name__}: expected a model of transformers")
    config, set_implementation = cast(Any, model.config), cast(Callable[[str], None], model.set_attn_implementation)
    before = config._attn_implementation
    attention = attention_of(model) if attention is None else attention
    set_implementation(WATCHED)
    if config._attn_implementation != WATCHED:
        raise InputError(
            f"{type(model).__name__} does not call the attention interface of transformers: expected a model that does, "
            "such as Llama, GPT-2, GPT-NeoX or BERT"
        )
    _Watch.handler, _Watch.attention = handler, attention
    try:
        yield
    finally:
        _Watch.handler = None
        set_implementation("eager" if before is None else before)


def _watched_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    assert _Watch.handler is not None
    call = arrange_call(_Watch.attention, module, query, key, value, attention_mask, **options)
    return finish_call(_Watch.attention, module, call, _Watch.handler(module, call)), None


class CodeRecorder:
    """A handler that keeps the codes of every layer, (b, h, q, k), and changes those of some layers.

    Layers are numbered in the order in which they are called.
    """

    def __init__(self, code_maps: Sequence[CodeMap | None] | None = None) -> None:
        self.codes: list[Tensor] = []
        self.modules: list[nn.Module] = []
        self.code_maps = code_maps

    def __call__(self, module: nn.Module, call: Call) -> Tensor:
        layer = len(self.codes)
        code_map = self.code_maps[layer] if self.code_maps is not None and layer < len(self.code_maps) else None
        out, codes = attend(call.q, call.k, call.v, code_map=code_map, return_codes=True, **call.options)
        assert codes is not None
        self.codes.append(codes)
        self.modules.append(module)
        return out
