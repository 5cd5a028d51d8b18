"""The layers of the models: attention, position, feed-forward; and HYLA for models from elsewhere."""

from recombine.layers.attention import ATTENTIONS, Attention, AttentionName
from recombine.layers.convert import convert
from recombine.layers.feedforward import FEEDFORWARDS, MLP, MixtureOfExperts, SwiGLU, build_feedforward
from recombine.layers.hypernetwork_attention import HypernetworkAttention
from recombine.layers.hypernetwork_view import HypernetworkView, hypernetwork_view
from recombine.layers.output_scale import OUTPUT_SCALES, OutputScale
from recombine.layers.position import RelativeBias, Rotary

__all__ = [
    "ATTENTIONS",
    "FEEDFORWARDS",
    "MLP",
    "OUTPUT_SCALES",
    "Attention",
    "AttentionName",
    "HypernetworkAttention",
    "HypernetworkView",
    "MixtureOfExperts",
    "OutputScale",
    "RelativeBias",
    "Rotary",
    "SwiGLU",
    "build_feedforward",
    "convert",
    "hypernetwork_view",
]
