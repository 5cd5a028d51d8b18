# %% [markdown]
# # Put HYLA into your model
#
# `recombine.HypernetworkAttention` replaces `torch.nn.MultiheadAttention`. It has the same constructor, the same
# call and the same parameters. HYLA normalises the attention scores over heads and applies a ReLU in the value
# network that they generate.

# %%
import torch
from torch import nn

import recombine

torch.manual_seed(0)
attention = recombine.HypernetworkAttention(64, 8, batch_first=True)
x = torch.randn(2, 10, 64)
output, _ = attention(x, x, x, need_weights=False)
print(tuple(output.shape))

# %% [markdown]
# `convert` replaces every attention layer of an existing model in place and keeps its parameters. Softmax attention
# averages over keys, but HYLA sums over them, so `convert` normalises the output (`output_scale="norm"`). The attention
# of the paper is `output_scale="none"`, which is the default of `HypernetworkAttention`. See
# [Hugging Face](../hugging_face.md#the-output-scale).

# %%
layer = nn.TransformerEncoderLayer(64, 8, batch_first=True)
encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
recombine.convert(encoder, attention="hyla")
print(type(encoder.layers[0].self_attn).__name__, tuple(encoder(x).shape))

# %% [markdown]
# Any multi-head attention can be viewed as a hypernetwork. For each pair of a query and a key, the scores of all
# heads are a *latent code*, which generates the matrix that is applied to the key's token.

# %%
view = recombine.hypernetwork_view(nn.MultiheadAttention(64, 8, batch_first=True), x)
print("codes", tuple(view.codes.shape), "(batch, head, query, key)")
print("value matrices", tuple(view.value_matrices.shape))
