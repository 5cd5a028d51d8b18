"""Four classes of causal functions of a sequence (On Provable Length and Compositional Generalization, arXiv 2402.04875),
and one more that none of them contains.

The hidden state at position t, for tokens x_1 .. x_t:

    deep_set     h_t = Σ_{j ≤ t} φ(x_j)
    attention    h_t = Σ_{j ≤ t} a(q_t · k_j / √d) V x_j,    q_t = Q x_t,  k_j = K x_j
    ssm          h_t = Λ h_{t-1} + B x_t
    rnn          h_t = σ(Λ h_{t-1} + B x_t)
    product      h_t = Π_{j ≤ t} φ(x_j)

and the output y_t = ρ(h_t). σ is the logistic sigmoid; φ is an MLP with one hidden layer and a sigmoid after both of its
layers; ρ is one layer with a sigmoid (`linear` readout: limited capacity) or such an MLP (`mlp`: higher capacity). Attention
weights a are softmax over the prefix, or sigmoid, linear or relu, each divided by t.

Weights of layers are N(0, 0.6²) and recurrent matrices Λ orthogonal, as in the authors' release. Our own choices: biases
are 0; weights are divided by t; Λ has determinant +1, so that pairs of complex eigenvalues suffice to diagonalise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.random import Stream
from recombine.tasks.native import layers as kernel

SequenceClass = Literal["deep_set", "attention", "ssm", "rnn", "product"]
AttentionWeights = Literal["sigmoid", "softmax", "linear", "relu"]
Readout = Literal["linear", "mlp"]
Weights = dict[str, Tensor]

WEIGHT_DEVIATION = 0.6


def mark_real(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Bool[Tensor, "b t"]:
    """True for tokens, False for padding."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def clear_padding(x: Float[Tensor, "b t features"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b t features"]:
    """Multiply the features of padding by 0, in place."""
    if kernel.supports_clear_padding(x, lengths):
        return kernel.clear_padding(x, lengths)
    return x.mul_(mark_real(x, lengths)[..., None])


def draw_weights(name: SequenceClass, readout: Readout, *, dims: tuple[int, int, int], seed: int) -> Weights:
    """The weights of a random function, named as in a model of the same class; `dims` of token, hidden state and output."""
    token_dim, hidden_dim, target_dim = dims
    shapes: dict[str, tuple[int, ...]] = {}
    if name in ("deep_set", "product"):
        shapes |= _layer_shapes("embed", token_dim, hidden_dim, hidden_dim)
    elif name == "attention":
        shapes |= dict.fromkeys(("query", "key", "value"), (hidden_dim, token_dim))
    else:
        shapes |= {"recurrence": (hidden_dim, hidden_dim), "input": (hidden_dim, token_dim)}
    sizes = (hidden_dim, target_dim) if readout == "linear" else (hidden_dim, hidden_dim, target_dim)
    shapes |= _layer_shapes("readout", *sizes)
    weights = {}
    for part, shape in shapes.items():
        stream = Stream("sequence teacher's weights", seed, name, part, rows=range(shape[0]))
        if part.endswith("bias"):
            weights[part] = torch.zeros(shape, dtype=torch.float32)
        elif part == "recurrence":
            weights[part] = draw_rotation(stream, shape[0])
        else:
            weights[part] = WEIGHT_DEVIATION * stream.normal(shape[1]).float()
    return weights


def _layer_shapes(prefix: str, *sizes: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(len(sizes) - 1):
        shapes |= {f"{prefix}.{i}.weight": (sizes[i + 1], sizes[i]), f"{prefix}.{i}.bias": (sizes[i + 1],)}
    return shapes


def draw_rotation(stream: Stream, size: int) -> Float[Tensor, "size size"]:
    """An orthogonal matrix of determinant 1, uniformly random (QR of a normal matrix, signs of R moved into Q)."""
    q, r = torch.linalg.qr(stream.normal(size).float().double())
    q = q * r.diagonal().sign()
    q[:, 0] *= torch.linalg.det(q).sign()
    return q.float()


def label(
    name: SequenceClass,
    weights: Weights,
    x: Float[Tensor, "b t tokens"],
    *,
    attention: AttentionWeights = "sigmoid",
    lengths: Int[Tensor, " rows"] | None = None,
) -> tuple[Float[Tensor, "b t hidden"], Float[Tensor, "b t targets"]]:
    """Hidden states and outputs at every position; with `lengths`, those of padding are 0."""
    if name == "deep_set" and lengths is not None:
        embed, readout = list_layers(weights, "embed"), list_layers(weights, "readout")
        if kernel.supports(x, [*embed, *readout]):
            return kernel.sum_layers(x, lengths, embed, readout)
    hidden = _represent(name, weights, x, attention, lengths)
    y = apply_layers(weights, "readout", hidden, lengths)
    return (hidden, y) if lengths is None else (clear_padding(hidden, lengths), clear_padding(y, lengths))


def _represent(
    name: SequenceClass, weights: Weights, x: Tensor, attention: AttentionWeights, lengths: Tensor | None
) -> Float[Tensor, "b t hidden"]:
    """Hidden states at every position; with `lengths`, those of padding may be anything."""
    if name == "deep_set":
        return apply_layers(weights, "embed", x, lengths).cumsum_(dim=1)
    if name == "product":
        return apply_layers(weights, "embed", x, lengths).cumprod_(dim=1)
    if name == "attention":
        q, k, v = (x @ weights[part].T for part in ("query", "key", "value"))
        return attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), attention) @ v
    driven = x @ weights["input"].T
    squash: Callable[[Tensor], Tensor] = torch.sigmoid if name == "rnn" else torch.clone
    hidden = [squash(driven[:, 0])]
    for t in range(1, x.shape[1]):
        hidden.append(squash(torch.addmm(driven[:, t], hidden[-1], weights["recurrence"].T)))
    return torch.stack(hidden, dim=1)


def attention_weights(scores: Float[Tensor, "b t t"], attention: AttentionWeights) -> Float[Tensor, "b t t"]:
    """Causal attention weights of all keys for every query; those of later keys are 0."""
    size = scores.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
    if attention == "softmax":
        return scores.masked_fill(later, -torch.inf).softmax(dim=-1)
    if attention == "sigmoid":
        scores = scores.sigmoid()
    elif attention == "relu":
        scores = scores.relu()
    length = torch.arange(1, size + 1, device=scores.device, dtype=scores.dtype)
    return scores.masked_fill(later, 0) / length[:, None]


def apply_layers(
    weights: Weights, prefix: str, x: Float[Tensor, "*b features"], lengths: Int[Tensor, " rows"] | None = None
) -> Float[Tensor, "*b outputs"]:
    """Dense layers with a sigmoid after each; values after `lengths` tokens are arbitrary."""
    layers = list_layers(weights, prefix)
    if lengths is not None and kernel.supports(x, layers):
        return kernel.apply_layers(x, lengths, layers)
    for weight, bias in layers:
        x = (x @ weight.T).add_(bias).sigmoid_()
    return x


def list_layers(weights: Weights, prefix: str) -> list[kernel.Layer]:
    """Weight and bias of the layers of one part, in order."""
    layers: list[kernel.Layer] = []
    while f"{prefix}.{len(layers)}.weight" in weights:
        name = f"{prefix}.{len(layers)}"
        layers.append((weights[f"{name}.weight"], weights[f"{name}.bias"]))
    return layers
