"""The paper's theorem as a construction: a multilayer perceptron for modular tasks with neurons linear in the modules.

docs/theory.md derives it, and `recombine.models.constructed_network` builds it. Nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from recombine.models.constructed_network import build_modular_mlp, count_neurons
from recombine.recipes.calculation import Calculation, Computes, Untested
from recombine.recipes.scale.runs import ABSTRACT
from recombine.tasks import Hyperteacher

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
