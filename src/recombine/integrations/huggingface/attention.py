"""The attentions of Table A1 as attention implementations of Hugging Face `transformers`.

    register_attentions()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla")

`transformers` calls `attention(module, query, key, value, attention_mask, ...)` with heads before tokens, (b, h, t, d), and
keys and values of fewer heads where they are grouped. The mask of a model comes from a second registry under the same name;
without an entry there a model gets no mask at all and a causal one sees the future, so `register_attentions` fills both.
Ours is boolean: without a softmax, -inf as a score means nothing.

The output is scaled by `norm` unless the configuration of the model has `attention_output_scale`, because these models were
built for softmax attention, which averages over keys. "hyla_deep" needs one more matrix per head (eq. 10), which
`add_deep_weights` adds.

The attention of nearly every pretrained model is a softmax whose weights are the latent codes of "Attention as a
Hypernetwork" (eq. 2-5). `watching` lets a handler compute the attention of a model, which can so read or change its codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import safetensors
import torch
from torch import Tensor, nn

from recombine.attention.definition import Dropout
from recombine.attention.dispatch import attend
from recombine.attention.hyla import merge_masks
from recombine.attention.layer import ATTENTIONS, choose_output_scale, lecun_normal_, scale_output
from recombine.foundation.errors import InputError
from recombine.inside.collect import evaluating

# arguments that change the scores in a way that the kernels do not have
UNSUPPORTED = {"softcap": "a soft cap on scores", "s_aux": "attention sinks"}


class Call(NamedTuple):
    """The arguments of the kernels for one call of an attention layer: tokens before heads, no grouped heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]


def register_attentions() -> None:
    """Make every attention of Table A1 an `attn_implementation` of `transformers`. Calling it again changes nothing."""
    interface, masks = import_interfaces()
    for name in ATTENTIONS:
        interface.register(name, make_attention(name))
        masks.register(name, make_mask)


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


def make_attention(name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function that `transformers` calls for the attention of this name."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        call = arrange_call(name, module, query, key, value, attention_mask, **options)
        out, codes = attend(call.q, call.k, call.v, return_codes=bool(options.get("output_attentions")), **call.options)
        return finish_call(name, module, call, out), codes

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
        "deep_weight": _find_deep_weight(name, module),
    }
    num_groups = query.shape[1] // key.shape[1]
    return Call(query.transpose(1, 2), _repeat_heads(key, num_groups), _repeat_heads(value, num_groups), options)


def finish_call(name: str, module: nn.Module, call: Call, out: Tensor) -> Tensor:
    """Scale the output as the configuration of the model says."""
    chosen = getattr(getattr(module, "config", None), "attention_output_scale", None)
    scale = choose_output_scale(chosen, ATTENTIONS[name][0])
    return scale_output(out, scale, call.k.shape[1], call.options["mask"], causal=call.options["causal"]).contiguous()


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


def _find_deep_weight(name: str, module: nn.Module) -> Tensor | None:
    if ATTENTIONS[name][1] != "hyper_deep":
        return None
    weight = getattr(module, "deep_weight", None)
    if weight is None:
        raise InputError(
            f"{type(module).__name__} has no deep_weight, which {name!r} needs: expected a model after "
            "recombine.integrations.huggingface.add_deep_weights(model)"
        )
    return weight


WATCHED = "recombine_watched"
DEEP_WEIGHT = "deep_weight"

Handler = Callable[[nn.Module, Call], Tensor]
"""Computes what each head of each query receives, (b, q, h, e), for one call of an attention layer."""


@contextmanager
def watching(model: nn.Module, handler: Handler, attention: str | None = None) -> Iterator[None]:
    """Let `handler` compute the attention of a model, by default with the options of the model's own attention."""
    interface, masks = import_interfaces()
    if not hasattr(model, "set_attn_implementation"):
        raise InputError(f"the model is a {type(model).__name__}: expected a model of transformers")
    config, set_implementation = cast(Any, model.config), cast(Callable[[str], None], model.set_attn_implementation)
    before = config._attn_implementation
    name = attention or (before if before in ATTENTIONS else "softmax")  # every implementation but ours is a softmax

    def watched(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        call = arrange_call(name, module, query, key, value, attention_mask, **options)
        return finish_call(name, module, call, handler(module, call)), None

    interface.register(WATCHED, watched)
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


def add_deep_weights(model: nn.Module, folder: Path | str | None = None) -> None:
    """Add the parameter `deep_weight`, (h, e, e), to every attention layer: new, or as `save_pretrained` wrote it.

        model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla_deep")
        add_deep_weights(model)
        model.save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="hyla_deep")  # warns of unexpected keys
        add_deep_weights(model, folder)  # reads them

    Call it before the optimiser is built. Existing weights are kept unless a folder is given.
    """
    saved = {} if folder is None else _read_deep_weights(Path(folder))
    paths = {module: path for path, module in model.named_modules()}
    for module, (num_heads, width) in find_attention_modules(model).items():
        name = f"{paths[module]}.{DEEP_WEIGHT}"
        if folder is not None and name not in saved:
            raise InputError(f"{folder} has no {name}: expected a model that was saved with its deep weights")
        if getattr(module, DEEP_WEIGHT, None) is None:
            like = next(module.parameters(), next(model.parameters()))
            weight = torch.empty(num_heads, width, width, device=like.device, dtype=like.dtype)
            module.register_parameter(DEEP_WEIGHT, nn.Parameter(lecun_normal_(weight)))
        if folder is not None:
            with torch.no_grad():
                getattr(module, DEEP_WEIGHT).copy_(saved[name])


def find_attention_modules(model: nn.Module) -> dict[nn.Module, tuple[int, int]]:
    """The number of heads and their width, for each module of a model that calls the attention interface."""
    sizes: dict[nn.Module, tuple[int, int]] = {}

    def handle(module: nn.Module, call: Call) -> Tensor:
        sizes[module] = (call.q.shape[2], call.v.shape[3])
        return call.v.new_zeros(*call.q.shape[:3], call.v.shape[3])

    device = next(model.parameters()).device
    with evaluating(model), watching(model, handle, "softmax"):
        model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device))
    return sizes


def _read_deep_weights(folder: Path) -> dict[str, Tensor]:
    saved: dict[str, Tensor] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no .safetensors file: expected a folder that save_pretrained wrote")
    for path in files:
        with safetensors.safe_open(path, framework="pt") as file:
            saved |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(DEEP_WEIGHT)}  # noqa: SIM118
    return saved
