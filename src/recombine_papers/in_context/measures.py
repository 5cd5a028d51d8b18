"""Measurements of in-context networks: the latent in each layer, and the best code of a bottleneck.

**Fitted code**: what a bottleneck can execute, apart from what it can infer. The code is fitted to the examples of each sequence,

    fitted code = argmin over codes of the mean over examples of |execution(code, x) - y|²

by Adam, from the best of the codes that the model infers for this sequence and for others. Queries are then answered with
that code. If held-out compositions fail with the inferred code and succeed with the fitted one, the model has learned
modules that recombine, and the inference of the code from the examples fails.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.foundation import InputError
from recombine.inside import Measurement
from recombine.models import HypernetworkTransformer, HypernetworkTransformerConfig
from recombine.tasks import Batch, SplitName, Task
from recombine.training import Json, RunDirectory, load_run
from recombine_papers.scale.decodability import measure_decodability

METRIC = "r2_pooled"
FITTED_CODE = Measurement(name="fitted_code", version=1)
NUM_INSTANCES = 1_000
NUM_STEPS = 500
NUM_STARTS = 64


def measure_fitted_code(path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto") -> Json:
    """R² (pooled) at the queries with the inferred and with the fitted code, stored in `fitted_code.json` of the run."""

    def measure() -> Json:
        run, config, model = load_run(path, device)
        if not isinstance(model, HypernetworkTransformer):
            raise InputError(
                f"{run.path} has a model of kind {config.model.kind!r}: expected 'hypernetwork_transformer'"
            )
        inferred_id, fitted_id = score_codes(model, config.task, "test", num_instances)
        inferred_ood, fitted_ood = score_codes(model, config.task, "ood", num_instances)
        return {
            "num_instances": num_instances,
            "inferred": {"id": inferred_id, "ood": inferred_ood},
            "fitted": {"id": fitted_id, "ood": fitted_ood},
        }

    return FITTED_CODE.load_or_measure(path, {"num_instances": num_instances}, measure)


def score_codes(
    model: HypernetworkTransformer, task: Task, split: SplitName, num_instances: int
) -> tuple[float, float]:
    """R² (pooled) at the queries with the inferred and with the fitted code."""
    batch = task.sample(split, 0, batch_size=num_instances, device=next(model.parameters()).device)
    with torch.no_grad():
        queries = model.queries(batch.inputs)
        inferred = model.execution(model.infer(batch.inputs), queries)
        fitted = model.execution(fit_code(model, batch.inputs), queries)
    return pooled_r2(task, inferred, batch), pooled_r2(task, fitted, batch)


def fit_code(
    model: HypernetworkTransformer, inputs: Float[Tensor, "b tokens features"], *, num_steps: int = NUM_STEPS
) -> Float[Tensor, "b code"]:
    """The code that fits each row's own examples best; the model is not changed."""
    examples = inputs[:, : model.num_examples]
    x, y = examples[..., : model.query_dim], examples[..., model.query_dim :]

    def error(code: Float[Tensor, "b code"]) -> Float[Tensor, " b"]:
        return (model.execution(code, x) - y).square().mean(dim=(1, 2))

    with torch.no_grad():
        own = model.infer(inputs)
        starts = [own, *(other.expand_as(own) for other in own[:NUM_STARTS])]
        errors = torch.stack([error(start) for start in starts])
        best = torch.stack(starts)[errors.argmin(dim=0), torch.arange(len(own), device=own.device)]
    rate = 0.05 * own.std().item()
    with torch.enable_grad():
        code = best.clone().requires_grad_(True)
        optimiser = torch.optim.Adam([code], lr=rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, total_iters=num_steps)
        for _ in range(num_steps):
            (code.grad,) = torch.autograd.grad(error(code).sum(), code)
            optimiser.step()
            schedule.step()
    return torch.where((error(code.detach()) < errors.amin(dim=0))[:, None], code.detach(), best)


def pooled_r2(task: Task, answers: Tensor, batch: Batch) -> float:
    """R² of answers to the queries of a batch, pooled over outputs."""
    ratio = task.metrics(answers, batch)[METRIC]
    return (ratio.numerator.sum() / ratio.denominator.sum()).item()


def read_latents(run: RunDirectory, device: str) -> dict[str, float]:
    """How well z can be decoded, and the score with the code fitted to the examples, for models that have a code."""
    decodability = measure_decodability(run.path, device=device)
    best = decodability["sites"][decodability["best_site"]]
    measured = {
        "z_trained": best["id"],
        "z_held_out": best["ood"],
        "z_untrained": max(site["untrained"]["ood"] for site in decodability["sites"].values()),
    }
    if run.read_json("result.json")["model"] == HypernetworkTransformerConfig.kind:
        measured["fitted_code"] = measure_fitted_code(run.path, device=device)["fitted"]["ood"]
    return measured
