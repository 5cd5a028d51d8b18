"""Load a run: its directory, its configuration and its trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from recombine.errors import InputError
from recombine.registry import Code
from recombine.run.config import RunConfig
from recombine.run.device import resolve_device
from recombine.run.execute import check_step
from recombine.store import RunDirectory
from recombine.train import load_model


def load_config(run: RunDirectory, code: Sequence[Code] = ()) -> RunConfig:
    """The configuration of a run; `code` names its classes if they are not part of this package."""
    return RunConfig.from_dict(run.config, code, run.origins)


def load_run(
    path: Path | str, device: str = "auto", *, code: Sequence[Code] = ()
) -> tuple[RunDirectory, RunConfig, nn.Module]:
    """An existing run with its configuration and its trained model.

    `code` names the task and model if they are not part of this package, because a file alone never makes code run: each as
    `"path/to/file.py:NAME"`, `"package.module:NAME"`, the name of an entry point, or the class itself. For a run that
    `benchmark` made, give a function of the task that builds the module.
    """
    run = RunDirectory.open(path)
    config = load_config(run, code)
    torch_device = resolve_device(device)
    checkpoint = run.load_checkpoint(torch_device)
    if checkpoint is None:
        raise InputError(f"{run.path} has no checkpoint yet: expected a run that has been trained")
    tensors, info = checkpoint
    check_step(run, info, config.training.steps)
    model = config.build_model().to(torch_device)
    load_model(model, tensors)
    return run, config, model.eval()
