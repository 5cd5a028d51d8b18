"""The agnostic optimum: infer the composition and its strengths from examples, with known modules.

For every composition, the strengths z are fitted to the examples by Gauss-Newton, and the best fit is kept. As long as no
hidden unit turns on or off, y = relu(x . sum_m z_m Theta_m) . Omega is linear in z and passes through 0, so each step is an
ordinary least-squares problem:

    z <- argmin_z |y - S z|²,   S[t, m] = (x_t . Theta_m, where the unit is on) . Omega
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.compositions import Composition
from recombine.tasks.modular.teacher import ModularTeacher, apply_teacher

NUM_STEPS = 8


def fit_latent(
    teacher: ModularTeacher,
    compositions: Sequence[Composition],
    x: Float[Tensor, "batch examples input"],
    y: Float[Tensor, "batch examples output"],
    *,
    bounds: tuple[float, float],
) -> Float[Tensor, "batch modules"]:
    """z of each row: the strengths of the composition that fits its examples best, 0 for all other modules."""
    best_latent = x.new_zeros(len(x), len(teacher.weights[0]))
    best_error = x.new_full((len(x),), torch.inf)
    for composition in compositions:
        modules = torch.tensor(composition, device=x.device)
        strengths = fit_strengths(teacher, modules, x, y, bounds=bounds)
        latent = torch.zeros_like(best_latent).index_copy(1, modules, strengths)
        error = (apply_teacher(teacher, latent, x) - y).square().mean(dim=(1, 2))
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_latent = torch.where(better[:, None], latent, best_latent)
    return best_latent


def fit_strengths(
    teacher: ModularTeacher,
    modules: Int[Tensor, " active"],
    x: Float[Tensor, "batch examples input"],
    y: Float[Tensor, "batch examples output"],
    *,
    bounds: tuple[float, float],
) -> Float[Tensor, "batch active"]:
    """The fitted strengths of these modules. The fit starts in the middle of their range."""
    theta = teacher.weights[0][modules]
    preactivations = (x.flatten(0, 1) @ theta.transpose(0, 1).flatten(1)).view(*x.shape[:2], *theta.shape[::2])
    strengths = x.new_full((len(x), len(modules)), sum(bounds) / 2)
    for _ in range(NUM_STEPS):
        on = (strengths[:, None, None] @ preactivations) > 0
        slopes = ((preactivations * on) @ teacher.readout).transpose(2, 3).flatten(1, 2)
        gram = slopes.mT @ slopes + 1e-6 * torch.eye(len(modules), dtype=x.dtype, device=x.device)
        strengths = torch.linalg.solve(gram, slopes.mT @ y.flatten(1)[..., None])[..., 0].clamp(*bounds)
    return strengths
