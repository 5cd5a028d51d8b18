"""HYLA where torch.nn.MultiheadAttention stood: convert a model in place, and look at what its attention generates."""

import torch
from torch import nn

import recombine

layer = nn.TransformerEncoderLayer(d_model=64, nhead=8, dim_feedforward=128, batch_first=True)
encoder = nn.TransformerEncoder(layer, num_layers=2)
x = torch.randn(2, 10, 64)

before = encoder(x)
recombine.convert(encoder, attention="hyla")  # the same weights, another value network
after = encoder(x)
print("attention is now", type(encoder.layers[0].self_attn).__name__)
print(f"outputs differ by {(before - after).abs().mean():.3f} on average")

attention = nn.MultiheadAttention(64, 8, batch_first=True)
view = recombine.hypernetwork_view(attention, x)
print("latent codes", tuple(view.codes.shape), " generated value matrices", tuple(view.value_matrices.shape))
print(f"output rebuilt from them: error {(view.output - attention(x, x, x)[0]).abs().max():.1e}")
