"""The paper's theorem as a construction: a multilayer perceptron for modular tasks with neurons linear in the modules.

docs/theory.md derives the networks, which are built by hand instead of trained.

`build_modular_attention`: linear attention with one head per module computes sum_m z_m Theta_m x, exactly. The token of
the task is the query and holds z. In head m the query is z_m, the key of the token of x is 1, and the value network is
Theta_m.

`build_modular_mlp`: a multilayer perceptron on (z, x) that computes relu(sum_m z_m (x Theta_m + b_m)) Omega to any precision
(Scaling can lead to compositional generalization, arXiv 2507.07207: neurons linear in the number of modules). Products come
from squares, 2 a b = (a + b)² - a² - b², and a square from straight lines between n knots per unit, which are too large by
at most 1 / (4 n²). One hidden layer holds all M I + M + I squares; the second is the teacher's own. All squares have
their knots at the same positions, so that the errors of an inactive module cancel: (0 + x)² - x² is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.attention import Attention
from recombine.foundation import InputError, check_positive
from recombine.models import MultilayerPerceptron
from recombine.tasks import Hyperteacher, ModularTeacher
from recombine_papers.claims import Computes, Untested
from recombine_papers.experiment import Calculation
from recombine_papers.scale.runs import ABSTRACT


def build_modular_attention(theta: Float[Tensor, "modules x y"]) -> Attention:
    """Linear attention from tokens (z, x, 1) to x . sum_m z_m Theta_m, in the first features of its output.

    The token of the task is (z, 0, 0) and that of the input (0, x, 1). One feature of a head is its query: the scores are
    z_m / sqrt(d), so the values are Theta_m sqrt(d).
    """
    num_modules, x_dim, y_dim = theta.shape
    head_dim = max(x_dim, y_dim)
    size = num_modules + x_dim + 1
    if y_dim > size:
        raise InputError(
            f"{y_dim} outputs from tokens of {size} features: expected at most as many outputs as features"
        )
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


def build_modular_mlp(teacher: ModularTeacher, *, num_knots: int, z_limit: float = 1.0) -> MultilayerPerceptron:
    """The teacher of one hidden layer as a plain network on (z, x), for 0 <= z <= z_limit and |x| <= 1; n = num_knots."""
    check_positive(num_knots=num_knots)
    if len(teacher.weights) != 1:
        raise InputError(f"the teacher has {len(teacher.weights)} hidden layers: expected 1")
    theta, bias = teacher.weights[0].double(), teacher.biases[0].double()
    num_modules, x_dim, hidden_dim = theta.shape
    eye = torch.eye(num_modules + x_dim, dtype=torch.float64)
    sums = (eye[:num_modules, None] + eye[None, num_modules:]).flatten(0, 1)
    squares = (  # what to square, as functions of (z, x); what the squares add to the second layer; their range
        (sums, theta.flatten(0, 1) / 2, -1.0, 1 + z_limit),
        (eye[:num_modules], -theta.sum(dim=1) / 2, 0.0, z_limit),
        (eye[num_modules:], -theta.sum(dim=0) / 2, -1.0, 1.0),
    )
    # the biases need z itself, which is relu(z)
    weights, shifts, effects = [eye[:num_modules]], [torch.zeros(num_modules, dtype=torch.float64)], [bias]
    constant = torch.zeros(hidden_dim, dtype=torch.float64)
    for arguments, uses, low, high in squares:
        knots, slopes = _interpolate_square(low, high, num_knots)
        weights.append(arguments.repeat_interleave(len(knots), dim=0))
        shifts.append(-knots.repeat(len(arguments)))
        effects.append((uses[:, None] * slopes[:, None]).flatten(0, 1))
        constant += low**2 * uses.sum(dim=0)

    network = MultilayerPerceptron(len(eye), [len(torch.cat(shifts)), hidden_dim], teacher.readout.shape[1]).double()
    first, second, output = network.dense_layers
    with torch.no_grad():
        first.weight.copy_(torch.cat(weights))
        first.bias.copy_(torch.cat(shifts))
        second.weight.copy_(torch.cat(effects).T)
        second.bias.copy_(constant)
        output.weight.copy_(teacher.readout.T)
        output.bias.zero_()
    return network


def _interpolate_square(
    low: float, high: float, num_knots: int
) -> tuple[Float[Tensor, " knots"], Float[Tensor, " knots"]]:
    """Knots and changes of slope of t² = low² + sum_j slope_j relu(t - knot_j), exact wherever n t is a whole number."""
    num_pieces = math.ceil((high - low) * num_knots - 1e-9)
    knots = low + torch.arange(num_pieces, dtype=torch.float64) / num_knots
    slopes = torch.full_like(knots, 2 / num_knots)
    slopes[0] = 2 * low + 1 / num_knots
    return knots, slopes


def count_neurons(network: MultilayerPerceptron) -> int:
    """Hidden neurons of all layers."""
    return sum(layer.out_features for layer in network.dense_layers[:-1])


FEW_MODULES, MANY_MODULES = 8, 64
FEW_KNOTS, MANY_KNOTS = 8, 64  # per unit


class NeuronTheory(Calculation):
    """Neurons and error of the construction against the number of modules and of knots."""

    name = "scale-theory"
    question = "How many neurons does a multilayer perceptron need for modular tasks?"
    claims = (
        Computes(
            text="neurons linear in the number of modules are enough (exponent of neurons, 8 to 64 modules)",
            source=ABSTRACT,
            quantity="exponent_of_neurons",
            high=1.05,
        ),
        Computes(
            text="the error does not grow with the number of modules (64 modules divided by 8)",
            source=ABSTRACT,
            quantity="error_ratio",
            high=1.25,
        ),
        Computes(
            text="any precision can be reached (exponent of the error in the number of knots)",
            source=ABSTRACT,
            quantity="exponent_of_error",
            high=-1.8,
        ),
        Untested(
            text="decodability of concepts goes with failures of text-to-image models",
            source=ABSTRACT,
            needs="a pretrained text-to-image model and its prompts",
        ),
    )

    def compute(self, seed: int) -> Mapping[str, float]:
        few, few_error = measure_network(FEW_MODULES, FEW_KNOTS, seed)
        many, many_error = measure_network(MANY_MODULES, FEW_KNOTS, seed)
        _, exact_error = measure_network(FEW_MODULES, MANY_KNOTS, seed)
        return {
            "exponent_of_neurons": math.log(many / few) / math.log(MANY_MODULES / FEW_MODULES),
            "error_ratio": many_error / few_error,
            "exponent_of_error": math.log(exact_error / few_error) / math.log(MANY_KNOTS / FEW_KNOTS),
        }


@torch.no_grad()
def measure_network(num_modules: int, num_knots: int, seed: int = 0) -> tuple[int, float]:
    """Neurons of the construction, and its error on held-out compositions as a share of the outputs' deviation."""
    task = Hyperteacher(num_modules=num_modules, num_active=3, num_extra=0, seed=seed)
    network = build_modular_mlp(task.teacher, num_knots=num_knots)
    batch = task.sample("ood", 0, batch_size=64)
    z, x = batch.info["strengths"], batch.inputs[..., task.encoding_dim :]
    mixed = (z / task.num_active**0.5)[:, None].expand(-1, x.shape[1], -1)
    error = network(torch.cat([mixed, x], dim=-1).double()) - batch.targets
    return count_neurons(network), (error.square().mean().sqrt() / batch.targets.std()).item()
