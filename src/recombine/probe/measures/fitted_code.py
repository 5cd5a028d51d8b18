"""What a bottleneck can carry out, apart from what it can infer: its code fitted to the examples of each sequence.

    fitted code = argmin over codes of the mean over examples of |execution(code, x) - y|²

by Adam from the best of the codes that the model infers for this sequence and for others. Queries are then answered with
that code. If held-out combinations go wrong with the inferred code and right with the fitted one, then the model has found
modules that recombine, and what fails is the way from examples to the code. It leaves `fitted_code.json`:

    inferred, fitted    {id, ood}: R² (pooled) at the queries
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.errors import InputError
from recombine.models.hypernetwork_transformer import HypernetworkTransformer
from recombine.run import load_run
from recombine.store import Json
from recombine.tasks import Batch, SplitName, Task

FILE = "fitted_code.json"
NUM_INSTANCES = 1_000
NUM_STEPS = 500
NUM_STARTS = 64
SPLITS: dict[str, SplitName] = {"id": "test", "ood": "ood"}


def measure_fitted_code(path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto") -> Json:
    """What `fitted_code.json` of a run says, measured if it is not there yet."""
    run, config, model = load_run(path, device)
    if not isinstance(model, HypernetworkTransformer):
        raise InputError(f"{run.path} has a model of kind {config.model.kind!r}: expected 'hypernetwork_transformer'")
    if not (run.path / FILE).exists():
        place = next(model.parameters()).device
        found: Json = {"num_instances": num_instances, "inferred": {}, "fitted": {}}
        for name, split in SPLITS.items():
            batch = config.task.sample(split, 0, batch_size=num_instances, device=place)
            with torch.no_grad():
                codes = {"inferred": model.infer(batch.inputs), "fitted": fit_code(model, batch.inputs)}
                for kind, code in codes.items():
                    answers = model.execution(code, model.queries(batch.inputs))
                    found[kind][name] = _pooled_r2(config.task, answers, batch)
        run.write_json(FILE, found)
    return run.read_json(FILE)


def fit_code(
    model: HypernetworkTransformer, inputs: Float[Tensor, "b tokens features"], *, num_steps: int = NUM_STEPS
) -> Float[Tensor, "b code"]:
    """The code under which each row's own examples come out best; the model stays as it is."""
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
