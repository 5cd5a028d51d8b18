"""Networks built by hand instead of trained: what the theory says exists (docs/theory.md).

`build_modular_attention`: linear attention with one head for each module computes sum_m z_m Theta_m x, exactly. The token of
the task is the query and holds z; head m asks for z_m, the token of x answers with 1, and the value network of the head is
Theta_m.

`build_modular_mlp`: a multilayer perceptron on (z, x) that computes relu(sum_m z_m (x Theta_m + b_m)) Omega to any precision
(Scale leads to compositional generalization, arXiv 2507.07207: neurons linear in the number of modules). Products come
from squares, 2 a b = (a + b)² - a² - b², and a square from straight lines between knots: with n knots on an interval of
length l the square is too large by at most (l / (n - 1))² / 4. One hidden layer holds all M I + M + I squares, n - 1 neurons
each; the second is the teacher's own.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.errors import InputError
from recombine.layers.attention import Attention
from recombine.models.mlp import MultilayerPerceptron
from recombine.tasks.modular_teacher import ModularTeacher


def build_modular_attention(theta: Float[Tensor, "modules x y"]) -> Attention:
    """Linear attention from tokens (z, x, 1) to x . sum_m z_m Theta_m, in the first features of its output.

    The token of the task is (z, 0, 0) and that of the input (0, x, 1). One feature of a head is its question: the scores are
    z_m / sqrt(d), so the values are Theta_m sqrt(d).
    """
    num_modules, x_dim, y_dim = theta.shape
    head_dim = max(x_dim, y_dim)
    size = num_modules + x_dim + 1
    if y_dim > size:
        raise InputError(f"{y_dim} outputs from tokens of {size} features: expected no more than fit into a token")
    layer = Attention(size, num_heads=num_modules, kqv_dim=num_modules * head_dim, attention="linear").to(theta.dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        query, key, value = layer.qkv_weight.unflatten(0, (3, num_modules, head_dim))
        output = layer.output.weight.unflatten(1, (num_modules, head_dim))
        for module in range(num_modules):
            query[module, 0, module] = 1
            key[module, 0, -1] = 1
            value[module, :y_dim, num_modules:-1] = theta[module].T * head_dim**0.5
            output[:y_dim, module, :y_dim] = torch.eye(y_dim, dtype=theta.dtype)
    return layer


def build_modular_mlp(
    teacher: ModularTeacher, *, num_knots: int, z_limit: float = 1.0, x_limit: float = 1.0
) -> MultilayerPerceptron:
    """The teacher of one hidden layer as a plain network on (z, x), for 0 <= z <= z_limit and |x| <= x_limit."""
    if num_knots < 2:
        raise InputError(f"num_knots is {num_knots}: expected at least 2, the ends of an interval")
    if len(teacher.weights) != 1:
        raise InputError(f"the teacher has {len(teacher.weights)} hidden layers: expected 1")
    theta, bias = teacher.weights[0].double(), teacher.biases[0].double()
    num_modules, x_dim, hidden_dim = theta.shape
    # a row of `arguments`: a linear function of (z, x) to be squared; of `uses`: what its square adds to the second layer
    eye = torch.eye(num_modules + x_dim, dtype=torch.float64)
    sums = (eye[:num_modules, None] + eye[None, num_modules:]).flatten(0, 1)
    arguments = torch.cat([sums, eye])
    uses = torch.cat([theta.flatten(0, 1), -theta.sum(dim=1), -theta.sum(dim=0)]) / 2
    low = torch.cat([torch.full((len(sums),), -x_limit), torch.zeros(num_modules), torch.full((x_dim,), -x_limit)])
    high = torch.cat([torch.full((len(sums),), z_limit + x_limit), torch.full((num_modules,), z_limit), -low[-x_dim:]])
    knots, slopes, offset = _interpolate_square(low.double(), high.double(), num_knots)

    network = MultilayerPerceptron(
        num_modules + x_dim, [slopes.numel() + num_modules, hidden_dim], len(teacher.readout.T)
    )
    network = network.double()
    first, second, output = network.dense_layers
    squares = slopes.numel()
    with torch.no_grad():
        # neurons relu(argument - knot) for the squares, then relu(z) = z for the biases
        first.weight.copy_(torch.cat([arguments.repeat_interleave(num_knots - 1, dim=0), eye[:num_modules]]))
        first.bias.copy_(torch.cat([-knots.flatten(), torch.zeros(num_modules, dtype=torch.float64)]))
        second.weight[:, :squares].copy_((slopes[..., None] * uses[:, None]).flatten(0, 1).T)
        second.weight[:, squares:].copy_(bias.T)
        second.bias.copy_(offset @ uses)
        output.weight.copy_(teacher.readout.T)
        output.bias.zero_()
    return network


def _interpolate_square(
    low: Float[Tensor, " squares"], high: Float[Tensor, " squares"], num_knots: int
) -> tuple[Float[Tensor, "squares pieces"], Float[Tensor, "squares pieces"], Float[Tensor, " squares"]]:
    """Knots, changes of slope and offset of t² = offset + sum_j slope_j relu(t - knot_j), exact at evenly spaced knots."""
    step = (high - low) / (num_knots - 1)
    knots = low[:, None] + step[:, None] * torch.arange(num_knots - 1, dtype=low.dtype)
    slopes = torch.full_like(knots, 2.0) * step[:, None]
    slopes[:, 0] = 2 * low + step
    return knots, slopes, low.square()


def count_neurons(network: MultilayerPerceptron) -> int:
    """Hidden neurons of all layers."""
    return sum(layer.out_features for layer in network.dense_layers[:-1])
