"""Train and score a module of your own on a task, with or without a run directory.

Load a run: its directory, its configuration and its trained model.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from recombine.foundation.errors import InputError
from recombine.models.base import Code, OutsideModule, describe_origin
from recombine.tasks.base import Task
from recombine.tasks.sampling import SplitName
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.directory import CHECKPOINT, RunDirectory
from recombine.training.identity import UnidentifiedError, identify_module
from recombine.training.run import (
    RunOptions,
    check_evaluation_instances,
    choose_intervals,
    finish_run,
    fit,
    is_up_to_date,
    open_directory,
)
from recombine.training.schema import Score
from recombine.training.score import Scores, score
from recombine.training.session import Watcher, join_group, progress_bar, resolve_device
from recombine.training.trainer import Clock, Trainer, load_model

_log = logging.getLogger(__name__)


class Benchmark(dict[SplitName, dict[str, Score]]):
    """Scores by split and metric; `run` is the run directory, if one was asked for."""

    def __init__(self, scores: Scores, run: RunDirectory | None = None) -> None:
        super().__init__(scores)
        self.run = run


def benchmark(
    model: nn.Module,
    task: Task,
    *,
    training: TrainingConfig | None = None,
    evaluation_instances: int | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    progress: bool = True,
    watch: Watcher | None = None,
) -> Benchmark:
    """Train any module from a task's inputs to predictions, and score it.

    With `out`, a run directory is left there, at `benchmark(...).run.path`. The same module with the same initial parameters
    finds it again, which is logged: a killed run is resumed, a finished one is loaded. A module is the same if its code, with
    all that it reaches, and its attributes are the same (see `recombine.training.identity`); one that cannot be compared,
    because it has hooks for example, is always trained. To probe, diagnose or report on it, name a function
    of the task that builds the module: `load_run(path, code=[make_model])`, or `--code FILE.py:make_model`.

    A progress bar is shown unless `progress` is False or `watch` is given, a function that is called with the progress.
    """
    training = TrainingConfig() if training is None else training
    num_instances = check_evaluation_instances(task, evaluation_instances)
    torch_device = resolve_device(device)
    group = join_group(torch_device)
    with progress_bar(type(model).__name__, quiet=not progress or watch is not None) as bar:
        if out is None:
            trainer = Trainer(model, task, training, torch_device, group=group)
            intervals = choose_intervals(training.steps, task.training_evaluations)
            fit(trainer, intervals, clock=Clock(), watch=watch or bar)
            return Benchmark(score(model, task, num_instances=num_instances, device=torch_device))
        config = RunConfig(task=task, model=describe_module(model), training=training)
        folder, origin = Path(out), describe_origin(type(model))
        origins = config.origins if origin is None else {**config.origins, "model": origin}
        opened = group.run_on_leader(lambda: str(open_directory(config, folder, origins).path))
        run = RunDirectory(Path(opened))
        if group.is_leader and (run.path / CHECKPOINT).exists():
            finished = is_up_to_date(run, num_instances)
            how = "its parameters and scores are loaded" if finished else "training continues from its last checkpoint"
            _log.warning("%s: this module was trained before; %s", run.path, how)
        finish_run(run, config, model, torch_device, num_instances, RunOptions(watch=watch or bar))
    return Benchmark(_load_result(run, model, torch_device), run)


def describe_module(model: nn.Module) -> OutsideModule:
    """The entry of a module in a run directory; one without an identity gets a random one, so that no run is reused for it."""
    name = type(model).__name__
    try:
        return OutsideModule(name=name, fingerprint=identify_module(model))
    except UnidentifiedError as error:
        _log.warning("%s will be trained even if it was trained before: %s", name, error)
        return OutsideModule(name=name, fingerprint=secrets.token_hex(8))


def _load_result(run: RunDirectory, model: nn.Module, device: torch.device) -> Scores:
    """The scores of a finished run; its parameters are loaded into the module."""
    checkpoint = run.load_checkpoint(device)
    assert checkpoint is not None
    load_model(model.to(device), checkpoint[0])
    result = run.read_json("result.json", complete=True)
    return {
        split: {
            name: Score(**entry, sums=tuple(map(tuple, result["composition_sums"][split][name])))
            for name, entry in metrics.items()
        }
        for split, metrics in result["scores"].items()
    }


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
    model = config.build_model().to(torch_device)
    load_model(model, checkpoint[0])
    return run, config, model.eval()
