"""A linear hypernetwork over shared modules: the frozen teacher of the hyperteacher and in-context families.

Each module m holds a weight matrix Theta_m and a bias b_m for every hidden layer; a task is a vector z that mixes them,

    h = relu(x . sum_m z_m Theta_m + sum_m z_m b_m)   (once for each hidden layer),   y = h . Omega

with one readout Omega for all tasks (Scaling can lead to compositional generalization, arXiv 2507.07207; When can
transformers compositionally generalize in-context?, arXiv 2407.12275). Weights have variance `weight_scale / fan_in`. The
strengths z are drawn alike in every family that mixes modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.random import Stream

Distribution = Literal["truncated_normal", "normal"]
Latents = Literal["discrete", "k_hot", "continuous"]
TRUNCATION = 2.0  # of the normal distribution, in standard deviations
LOWEST_LEVEL, HIGHEST_LEVEL = 5, 10  # strengths of active modules, in tenths
LOWEST_STRENGTH = LOWEST_LEVEL / HIGHEST_LEVEL


@dataclass(frozen=True)
class ModularTeacher:
    """Frozen weights: those of every module for each hidden layer, and the readout that all tasks share."""

    weights: tuple[Float[Tensor, "modules _ hidden"], ...]
    biases: tuple[Float[Tensor, "modules hidden"], ...]
    readout: Float[Tensor, "hidden output"]

    def to(self, device: torch.device | str) -> ModularTeacher:
        return ModularTeacher(
            tuple(tensor.to(device) for tensor in self.weights),
            tuple(tensor.to(device) for tensor in self.biases),
            self.readout.to(device),
        )


def draw_teacher(
    *key: object,
    num_modules: int,
    widths: Sequence[int],
    distribution: Distribution = "truncated_normal",
    weight_scale: float = math.sqrt(3),
    bias_range: tuple[float, float] = (0.0, 0.5),
) -> ModularTeacher:
    """The teacher for a key (task name, seed, ...); `widths` are those of its input, hidden layers and output.

    The first modules do not depend on the number of modules.
    """
    low, high = bias_range
    modules = Stream(*key, "modules", rows=range(num_modules))
    weights, biases = [], []
    for fan_in, fan_out in pairwise(widths[:-1]):
        weights.append(draw_weights(modules, distribution, weight_scale, fan_in, fan_out))
        biases.append(low + (high - low) * modules.uniform(fan_out))
    hidden_dim, output_dim = widths[-2:]
    readout = Stream(*key, "readout", rows=range(hidden_dim))
    omega = draw_weights(readout, distribution, weight_scale / hidden_dim, 1, output_dim)[:, 0]
    return ModularTeacher(tuple(weights), tuple(biases), omega)


def draw_weights(
    stream: Stream, distribution: Distribution, weight_scale: float, fan_in: int, fan_out: int
) -> Float[Tensor, "rows fan_in fan_out"]:
    """Mean 0 and variance weight_scale / fan_in, by the inverse of the distribution function."""
    if distribution == "normal":
        standard = stream.normal(fan_in, fan_out)
    else:
        uniform = stream.uniform(fan_in, fan_out).double() + 2.0**-25
        inside = math.erf(TRUNCATION / math.sqrt(2))
        density = math.exp(-(TRUNCATION**2) / 2) / math.sqrt(2 * math.pi)
        deviation = math.sqrt(1 - 2 * TRUNCATION * density / inside)  # of the truncated standard normal
        standard = torch.special.ndtri((1 - inside) / 2 + inside * uniform) / deviation
    return (standard * math.sqrt(weight_scale / fan_in)).float()


def apply_teacher(
    teacher: ModularTeacher,
    latents: Float[Tensor, "tasks modules"],
    x: Float[Tensor, "tasks samples input"],
) -> Float[Tensor, "tasks samples output"]:
    """The outputs of every task for its own inputs. Modules are mixed first, so x is multiplied once per task."""
    for weights, biases in zip(teacher.weights, teacher.biases, strict=True):
        mixed = (latents @ weights.flatten(1)).view(len(latents), *weights.shape[1:])
        x = torch.baddbmm((latents @ biases)[:, None], x, mixed).relu_()
    return x @ teacher.readout


def draw_strengths(
    modules: Int[Tensor, "rows active"], stream: Stream, *, num_modules: int, latents: Latents
) -> Float[Tensor, "rows modules"]:
    """The strength of each module; 0 outside the composition. -1 in `modules` means no module."""
    num_slots = modules.shape[1]
    if latents == "continuous":
        levels = LOWEST_STRENGTH + (1 - LOWEST_STRENGTH) * stream.uniform(num_slots)
    elif latents == "discrete":
        tenths = stream.integers(HIGHEST_LEVEL - LOWEST_LEVEL + 1, num_slots) + LOWEST_LEVEL
        levels = tenths.float() / HIGHEST_LEVEL
    else:
        levels = torch.ones(len(stream), num_slots, dtype=torch.float32, device=stream.device)
    everywhere = torch.zeros(len(modules), num_modules + 1, dtype=torch.float32, device=modules.device)
    # the last column receives the padding of short compositions, -1, and is dropped
    return everywhere.scatter_(1, modules % (num_modules + 1), levels)[:, :-1]


def describe_mixture(strengths: Float[Tensor, " modules"], name: str = "module") -> str:
    """The modules of a task with their strengths."""
    mixed = (f"{strength:.3g} × {name} {number}" for number, strength in enumerate(strengths.tolist()) if strength)
    return f"task = {' + '.join(mixed)}"
