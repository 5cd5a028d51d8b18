"""Latent codes of converted models: any module with `HypernetworkAttention` layers shows its codes and lets them be changed.

Our own models take `return_codes` and `code_maps`. A model that `convert` changed does not; `show_codes` wraps it in one that
does, with the layers in the order in which the model calls them.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from recombine.kernels import CodeMap
from recombine.layers.hypernetwork_attention import HypernetworkAttention
from recombine.layers.watch import CodeWatch
from recombine.models.base import Site


class ConvertedModel(nn.Module):
    """A model with `HypernetworkAttention` layers, called as our own models are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.layers = [module for module in model.modules() if isinstance(module, HypernetworkAttention)]

    def forward(
        self, inputs: Tensor, *, return_codes: bool = False, code_maps: Sequence[CodeMap | None] | None = None
    ) -> Tensor | tuple[Tensor, list[Float[Tensor, "b h q k"]]]:
        """Predictions, and with `return_codes` the codes of every layer that was called."""
        maps = [None] * len(self.layers) if code_maps is None else code_maps
        try:
            for layer, code_map in zip(self.layers, maps, strict=True):
                layer.watch = CodeWatch(code_map=code_map)
            predictions = self.inner(inputs)
            codes = [layer.watch.codes for layer in self.layers if layer.watch is not None]
        finally:
            for layer in self.layers:
                layer.watch = None
        return (predictions, [code for code in codes if code is not None]) if return_codes else predictions

    def find_site(self, site: Site) -> Site:
        """A site of the model itself, as a site of this one."""
        return site._replace(path=f"inner.{site.path}")


def show_codes(model: nn.Module) -> nn.Module:
    """The model itself, or a wrapper that shows its codes if it has layers with codes but does not show them."""
    if any(isinstance(module, HypernetworkAttention) for module in model.modules()):
        return ConvertedModel(model)
    return model
