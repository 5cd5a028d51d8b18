"""Measurements of in-context networks: the latent in each layer, the best code of a bottleneck, and gradients.

**Fitted code**: what a bottleneck can execute, apart from what it can infer. The code is fitted to the examples of each sequence,

    fitted code = argmin over codes of the mean over examples of |execution(code, x) - y|²

by Adam, from the best of the codes that the model infers for this sequence and for others. Queries are then answered with
that code. If held-out compositions fail with the inferred code and succeed with the fitted one, the model has learned
modules that recombine, and the inference of the code from the examples fails.

**Gradients**: do compositions agree on the gradient? With g_c the gradient of the loss of composition c, estimated twice from
independent instances (a, b), so that sampling noise cancels in every product,

    signal    = mean over c of  g_c(a) . g_c(b)
    agreement = mean over pairs c != c' of  g_c(a) . g_c'(b)
    variance share = (signal - agreement) / signal

The share is the part of the gradient's mean square that is variance between compositions: 0 if all agree, as when shared
modules are learned; 1 if every composition has its own direction, as when it gets its own solution. `transfer` is the
cosine between the mean gradients of training and of held-out compositions: how a training step acts on held-out ones.

Training is a pure function of its configuration, so `track_gradients` trains the same run again and measures on the way:
the numbers depend on the configuration alone, not on the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.foundation import InputError, check_positive
from recombine.inside import Measurement
from recombine.models import Code, HypernetworkTransformer, HypernetworkTransformerConfig
from recombine.tasks import Batch, SplitName, Task
from recombine.training import Json, RunConfig, RunDirectory, Trainer, load_run, resolve_device
from recombine_papers.scale.decodability import measure_decodability

METRIC = "r2_pooled"
FITTED_CODE = Measurement(name="fitted_code", version=1)
NUM_INSTANCES = 1_000
NUM_STEPS = 500
NUM_STARTS = 64


def measure_fitted_code(
    path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto", code: Sequence[Code] = ()
) -> Json:
    """R² (pooled) at the queries with the inferred and with the fitted code, stored in `fitted_code.json` of the run."""

    def measure() -> Json:
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

    return FITTED_CODE.load_or_measure(path, {"num_instances": num_instances}, measure, code=code)


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
    ratio = task.metrics(answers, batch)[METRIC]
    return (ratio.numerator.sum() / ratio.denominator.sum()).item()


GRADIENTS = Measurement(name="gradients", version=1, uses_checkpoint=False)
NUM_POINTS = 12


def measure_gradients(model: nn.Module, task: Task, *, num_instances: int = 512, index: int = 0) -> Json:
    """Variance share, transfer and signal of a model's gradients; `index` chooses the instances."""
    first, second = (composition_gradients(model, task, "test", num_instances, 2 * index + i) for i in range(2))
    held_out, held_out_again = (
        composition_gradients(model, task, "ood", num_instances, 2 * index + i).mean(dim=0) for i in range(2)
    )
    products = first @ second.T
    count = len(products)
    signal = products.diagonal().mean()
    agreement = (products.sum() - products.diagonal().sum()) / (count * (count - 1))
    mean, again = first.mean(dim=0), second.mean(dim=0)
    scale = ((mean @ again).clamp_min(1e-30) * (held_out @ held_out_again).clamp_min(1e-30)).sqrt()
    return {
        "variance_share": ((signal - agreement) / signal).item(),
        "transfer": ((mean @ held_out_again + again @ held_out) / 2 / scale).item(),
        "signal": signal.item(),
    }


def composition_gradients(
    model: nn.Module, task: Task, split: SplitName, num_instances: int, index: int
) -> Float[Tensor, "compositions parameters"]:
    """The gradient of the loss of each composition of a split, from its share of `num_instances` fresh instances."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # far behind the batches of training and scoring
    batch = task.sample(split, 10**6 + index, batch_size=num_instances, device=parameters[0].device)
    gradients = []
    for number in range(len(task.split.compositions(split))):
        rows = batch.composition == number
        part = replace(
            batch,
            inputs=batch.inputs[rows],
            targets=batch.targets[rows],
            latents=batch.latents[rows],
            info={name: values[rows] for name, values in batch.info.items()},
        )
        loss = task.loss(model(part.inputs).float(), part)
        pairs = zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True)
        gradients.append(torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in pairs]))
    return torch.stack(gradients).double()


def track_gradients(
    config: RunConfig, *, steps: int | None = None, num_points: int = NUM_POINTS, device: torch.device | str = "cpu"
) -> list[Json]:
    """Train a configuration again and measure its gradients at steps that are evenly spaced in their logarithm."""
    steps = config.training.steps if steps is None else steps
    check_positive(steps=steps, num_points=num_points)
    trainer = Trainer(config.build_model(), config.task, config.training, device)
    points = sorted({round(math.exp(math.log(steps) * i / max(num_points - 1, 1))) for i in range(num_points)})
    rows: list[Json] = []
    for point in points:
        while trainer.step < point:
            trainer.advance()
        rows.append({"step": point, **measure_gradients(trainer.model, config.task, index=len(rows))})
    return rows


def track_run(
    path: Path | str,
    *,
    steps: int | None = None,
    num_points: int = NUM_POINTS,
    device: str = "auto",
    code: Sequence[Code] = (),
) -> list[Json]:
    """The gradients of a run along its training, stored in `gradients.json`; `steps` is by default the length of the run."""

    def measure() -> Json:
        config = RunConfig.from_dict(RunDirectory.open(path).config, code)
        return {"rows": track_gradients(config, steps=steps, num_points=num_points, device=resolve_device(device))}

    rows: list[Json] = GRADIENTS.load_or_measure(path, {"steps": steps, "num_points": num_points}, measure, code=code)[
        "rows"
    ]
    return rows


def read_decodability(run: RunDirectory, device: str = "auto") -> Json:
    """How well z can be read from each layer; measured once."""
    return measure_decodability(run.path, device=device)


def read_gradients(run: RunDirectory, device: str = "auto") -> list[Json]:
    """Gradients between compositions along training; measured once."""
    return list(track_run(run.path, device=device))


def read_latents(run: RunDirectory, device: str) -> dict[str, float]:
    """How well z can be decoded, and the score with the code fitted to the examples, for models that have a code."""
    decodability = read_decodability(run, device)
    best = decodability["sites"][decodability["best_site"]]
    measured = {
        "z_trained": best["id"],
        "z_held_out": best["ood"],
        "z_untrained": max(site["untrained"]["ood"] for site in decodability["sites"].values()),
    }
    if run.read_json("result.json")["model"] == HypernetworkTransformerConfig.kind:
        measured["fitted_code"] = measure_fitted_code(run.path, device=device)["fitted"]["ood"]
    return measured
