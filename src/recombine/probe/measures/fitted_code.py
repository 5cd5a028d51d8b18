"""What a bottleneck can execute, apart from what it can infer: its code fitted to the examples of each sequence.

    fitted code = argmin over codes of the mean over examples of |execution(code, x) - y|²

by Adam, from the best of the codes that the model infers for this sequence and for others. Queries are then answered with
that code. If held-out compositions fail with the inferred code and succeed with the fitted one, the model has learned
modules that recombine, and what fails is the inference of the code from the examples. `fitted_code.json` has the keys of
`FittedCode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.errors import InputError
from recombine.models.hypernetwork_transformer import HypernetworkTransformer
from recombine.probe.cache import Measurement, MeasurementKey
from recombine.registry import Code
from recombine.run import load_run
from recombine.store import Json
from recombine.tasks import Batch, SplitName, Task

FITTED_CODE = Measurement(name="fitted_code", version=1)
NUM_INSTANCES = 1_000
NUM_STEPS = 500
NUM_STARTS = 64


class QueryR2(TypedDict):
    """R² (pooled) at the queries."""

    id: float
    ood: float


class FittedCodeNumbers(TypedDict):
    """What is measured."""

    num_instances: int
    inferred: QueryR2
    fitted: QueryR2


class FittedCode(FittedCodeNumbers):
    """`fitted_code.json`."""

    key: MeasurementKey


def measure_fitted_code(
    path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto", code: Sequence[Code] = ()
) -> Json:
    """The scores of a bottleneck with the inferred and with the fitted code (see `FittedCode`), kept in the run directory."""

    def measure() -> FittedCodeNumbers:
        run, config, model = load_run(path, device, code=code)
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

    return FITTED_CODE.keep(path, {"num_instances": num_instances}, measure, code=code)


def score_codes(
    model: HypernetworkTransformer, task: Task, split: SplitName, num_instances: int
) -> tuple[float, float]:
    """R² (pooled) at the queries with the inferred and with the fitted code."""
    batch = task.sample(split, 0, batch_size=num_instances, device=next(model.parameters()).device)
    with torch.no_grad():
        queries = model.queries(batch.inputs)
        inferred = model.execution(model.infer(batch.inputs), queries)
        fitted = model.execution(fit_code(model, batch.inputs), queries)
    return _pooled_r2(task, inferred, batch), _pooled_r2(task, fitted, batch)


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


def _pooled_r2(task: Task, answers: Tensor, batch: Batch) -> float:
    ratio = task.metrics(answers, batch)["r2_pooled"]
    return (ratio.numerator.sum() / ratio.denominator.sum()).item()
