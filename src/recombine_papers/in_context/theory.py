"""What a transformer could do: the paper says that it is in principle expressive enough for the task that it fails.

The task has two halves. To execute it, given its latent, takes one layer of linear attention with a head per module, the
teacher's nonlinearity and its readout (docs/theory.md). To infer the latent from examples is possible in principle, because
they determine it; no transformer is built here that does so.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from recombine.tasks import InContext, ModularTeacher, apply_teacher
from recombine_papers.claims import Computes, Untested, log10_of
from recombine_papers.experiment import Calculation
from recombine_papers.in_context.measures import METRIC, pooled_r2
from recombine_papers.in_context.runs import ABSTRACT, GOOD
from recombine_papers.scale.theory import build_modular_attention

EXACT = -9.0  # log10 of a difference that is rounding
NUM_SEQUENCES = 64
SOURCE = f"{ABSTRACT}: in principle expressive enough"


class InContextTheory(Calculation):
    """Held-out compositions, executed by an attention layer and inferred with known modules."""

    name = "in-context-theory"
    question = "Is a transformer in principle expressive enough to recombine modules in context?"
    known_before = "all numbers."
    claims = (
        Computes(
            text="attention executes held-out compositions, given their latent (log10 of the largest difference)",
            source=SOURCE,
            quantity="execution",
            high=EXACT,
            per_seed=True,
        ),
        Computes(
            text="the examples determine the latent of held-out compositions (R² with known modules)",
            source=SOURCE,
            quantity="inference",
            low=GOOD,
        ),
        Untested(
            text="a transformer can infer the latent from the examples",
            source=SOURCE,
            needs="the weights of a transformer that infers it, built by hand",
        ),
    )

    @torch.no_grad()
    def compute(self, seed: int) -> Mapping[str, float]:
        task = InContext(seed=seed)
        return {"execution": log10_of(compare_execution(task)), "inference": score_inference(task)}


def compare_execution(task: InContext) -> float:
    """The largest difference between the teacher's outputs and those of the attention layer that is built for it."""
    batch = task.sample("ood", 0, batch_size=NUM_SEQUENCES)
    z, x = batch.info["strengths"].double(), batch.inputs[:, 0, : task.input_size].double()
    theta, bias = task.teacher.weights[0].double(), task.teacher.biases[0].double()
    teacher = ModularTeacher((theta,), (bias,), task.teacher.readout.double())
    num_modules = len(theta)
    tokens = torch.zeros(NUM_SEQUENCES, 2, num_modules + task.input_size + 1, dtype=torch.float64)
    tokens[:, 0, :num_modules], tokens[:, 1, num_modules:-1], tokens[:, 1, -1] = z, x, 1
    hidden = build_modular_attention(theta)(tokens)[0][:, 0, : task.hidden_size]
    return float((hidden.relu() @ teacher.readout - apply_teacher(teacher, z, x[:, None])[:, 0]).abs().max())


def score_inference(task: InContext) -> float:
    """R² on held-out compositions of the latent that fits the examples best, over all compositions of known modules."""
    batch = task.sample("ood", 0, batch_size=NUM_SEQUENCES)
    return pooled_r2(task, task.best_predictions(batch, split=None, metric=METRIC), batch)
