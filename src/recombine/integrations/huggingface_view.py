"""The attention of a `transformers` model as a hypernetwork: value matrices that its latent codes generate (eq. 2-5).

`views(model, inputs)` returns for every layer the `HypernetworkView` and the layer's own output, which the view reproduces
up to rounding. Value and output projections are found by the names that models use for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.integrations.huggingface_watch import CodeRecorder, attention_of, watching
from recombine.layers.hypernetwork_view import HeadWeights, HypernetworkView, check_linear, generate_view
from recombine.probe.collect import evaluating

VALUE_NAMES = ("v_proj", "value", "v_lin", "c_attn", "query_key_value")
OUTPUT_NAMES = ("o_proj", "out_proj", "dense", "out_lin", "c_proj")


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """One layer: what its codes generate, and what the model itself computed."""

    view: HypernetworkView
    own_output: Float[Tensor, "b q out"]

    @property
    def error(self) -> float:
        """The largest difference between the two outputs, relative to the largest output."""
        return float((self.view.output - self.own_output).abs().max() / self.own_output.abs().max())


def views(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[LayerView]:
    """The hypernetwork view of every layer. Meant for short inputs: there is a matrix for each query and key."""
    scale = getattr(getattr(model, "config", None), "attention_output_scale", None)
    check_linear(attention_of(model), scale or ("none" if attention_of(model) == "softmax" else "norm"))
    recorder = CodeRecorder()
    seen: dict[nn.Module, Tensor] = {}
    with evaluating(model):
        with watching(model, recorder):
            model(**inputs)
        projections = [find_projections(model, module) for module in recorder.modules]
        # once more as the model is, without us: what is reproduced is its own output
        with ExitStack() as hooks:
            for value, output in projections:
                hooks.callback(value.register_forward_hook(_keep_input(seen)).remove)
                hooks.callback(output.register_forward_hook(_keep_output(seen)).remove)
            model(**inputs)
        return [
            LayerView(
                view=generate_view(codes, seen[value], split_heads(value, output, codes.shape[1], module)),
                own_output=seen[output],
            )
            for codes, module, (value, output) in zip(recorder.codes, recorder.modules, projections, strict=True)
        ]


def _keep_input(seen: dict[nn.Module, Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], _: Any) -> None:
        seen[module] = inputs[0]

    return hook


def _keep_output(seen: dict[nn.Module, Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, _: Any, output: Tensor) -> None:
        seen[module] = output

    return hook


def find_projections(model: nn.Module, module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The value projection of an attention module and the output projection behind it, in it or next to it."""
    path = next(name for name, submodule in model.named_modules() if submodule is module)
    value = next((getattr(module, name) for name in VALUE_NAMES if hasattr(module, name)), None)
    output = next((getattr(module, name) for name in OUTPUT_NAMES if hasattr(module, name)), None)
    if output is None:  # BERT has attention.self and attention.output.dense
        beside = getattr(model.get_submodule(path.rpartition(".")[0]), "output", None)
        output = getattr(beside, "dense", None)
    if not isinstance(value, nn.Module) or not isinstance(output, nn.Module):
        raise InputError(
            f"{path} of type {type(module).__name__} has no projections of known names: expected one of "
            f"{', '.join(VALUE_NAMES)} and one of {', '.join(OUTPUT_NAMES)}"
        )
    return value, output


def split_heads(value: nn.Module, output: nn.Module, num_heads: int, module: nn.Module) -> HeadWeights:
    """The weights of each head. Grouped values are repeated, as the heads of a group share them."""
    value_weight, value_bias = _as_linear(value)
    out_weight, out_bias = _as_linear(output)
    head_dim = out_weight.shape[1] // num_heads
    if hasattr(module, "c_attn"):  # GPT-2 stacks queries, keys and values
        value_weight, value_bias = value_weight.chunk(3)[2], value_bias.chunk(3)[2]
    elif hasattr(module, "query_key_value"):  # GPT-NeoX stacks them within each head
        value_weight = value_weight.unflatten(0, (num_heads, 3, -1))[:, 2].flatten(0, 1)
        value_bias = value_bias.unflatten(0, (num_heads, 3, -1))[:, 2].flatten()
    value_weight, value_bias = value_weight.unflatten(0, (-1, head_dim)), value_bias.unflatten(0, (-1, head_dim))
    num_groups = num_heads // len(value_weight)
    return HeadWeights(
        value_weight.repeat_interleave(num_groups, dim=0),
        value_bias.repeat_interleave(num_groups, dim=0),
        out_weight.unflatten(1, (num_heads, -1)),
        out_bias,
    )


def _as_linear(layer: nn.Module) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"]]:
    """Weight and bias as `nn.Linear` has them; GPT-2's Conv1D stores the transpose."""
    weight: Tensor = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T  # type: ignore[assignment]
    bias = getattr(layer, "bias", None)
    return weight.detach(), weight.new_zeros(len(weight)) if bias is None else bias.detach()
