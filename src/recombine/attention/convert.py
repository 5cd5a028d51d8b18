"""Replace the attention of a model by HYLA, weights kept.

model = convert(model, attention="hyla")      # every `nn.MultiheadAttention` in it
"""

from __future__ import annotations

from torch import nn

from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import ATTENTIONS, OutputScale, choose_output_scale
from recombine.foundation.errors import InputError, check_choice


def convert(model: nn.Module, attention: str = "hyla", *, output_scale: OutputScale | None = None) -> nn.Module:
    """Replace every `nn.MultiheadAttention` in `model` by a `HypernetworkAttention` with the same weights.

    The parameters are the same objects, so an existing optimiser keeps working. A module used twice stays shared. A layer
    that was converted before is only set to `attention`. Returns the model (the new layer if the model itself was one).

    `output_scale` is the choice of `output_scale.py`. By default it is `norm`, which trained best in our measurements
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
