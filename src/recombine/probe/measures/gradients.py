"""Do combinations pull a network in one direction? The variance of gradients between combinations, along training.

With g_c the gradient of the loss of combination c, estimated twice from independent instances (a, b), so that the noise of
sampling drops out of every product,

    signal    = mean over c of  g_c(a) . g_c(b)
    agreement = mean over pairs c != c' of  g_c(a) . g_c'(b)
    variance share = (signal - agreement) / signal

The share is the part of the gradient's mean square that is variance between combinations: 0 if all agree, as when shared
modules are learned; 1 if each goes its own way, as when every combination gets a solution of its own. `transfer` is the
cosine of the training combinations' mean gradient with that of held-out ones: what a step on the ones does for the others.

Training is a pure function of its configuration, so `track_gradients` trains a run's twin and looks in passing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import check_positive
from recombine.run import RunConfig, resolve_device
from recombine.store import Json, RunDirectory
from recombine.tasks import SplitName, Task
from recombine.train import Trainer

FILE = "gradients.json"


def measure_gradients(model: nn.Module, task: Task, *, num_instances: int = 512, index: int = 0) -> dict[str, float]:
    """Variance share, transfer and signal of a model's gradients; `index` chooses the instances."""
    first, second = (combination_gradients(model, task, "test", num_instances, 2 * index + i) for i in range(2))
    held_out, held_out_again = (
        combination_gradients(model, task, "ood", num_instances, 2 * index + i).mean(dim=0) for i in range(2)
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


def combination_gradients(
    model: nn.Module, task: Task, split: SplitName, num_instances: int, index: int
) -> Float[Tensor, "combinations parameters"]:
    """The gradient of the loss of each combination of a split, from its share of `num_instances` fresh instances."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # a stream of its own: no batch here is one that training or scoring takes
    batch = task.sample(split, 10**6 + index, batch_size=num_instances, device=parameters[0].device)
    gradients = []
    for number in range(len(task.split.compositions(split))):
        rows = batch.composition == number
        part = replace(
            batch,
            inputs=batch.inputs[rows],
            targets=batch.targets[rows],
            latents=batch.latents[rows],
            info={name: each[rows] for name, each in batch.info.items()},
        )
        loss = task.loss(model(part.inputs).float(), part)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = zip(parameters, found, strict=True)
        gradients.append(torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in pairs]))
    return torch.stack(gradients).double()


def track_gradients(
    config: RunConfig, *, steps: int | None = None, num_points: int = 12, device: torch.device | str = "cpu"
) -> list[Json]:
    """Train the run's twin and measure its gradients at steps spaced evenly in their logarithm."""
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


def track_run(path: Path | str, *, steps: int | None = None, num_points: int = 12, device: str = "auto") -> list[Json]:
    """The rows of `gradients.json` of a run, measured if it is not there yet."""
    run = RunDirectory.open(path)
    if not (run.path / FILE).exists():
        config = RunConfig.from_dict(run.config)
        rows = track_gradients(config, steps=steps, num_points=num_points, device=resolve_device(device))
        run.write_json(FILE, {"rows": rows})
    return run.read_json(FILE)["rows"]
