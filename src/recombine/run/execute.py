"""Train and evaluate a configuration in its run directory.

The hash of the configuration names the directory, so a finished run is not trained twice and a killed one is resumed. A
finished run that was evaluated in another way than now asked for is evaluated again from its checkpoint.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from recombine.errors import InputError, check_positive
from recombine.evaluate import EVALUATION_VERSION, Evaluation, describe_metrics, evaluate_predictor, scores_as_dict
from recombine.models import check_size, count_parameters
from recombine.registry import version_of
from recombine.run.config import RunConfig
from recombine.store import (
    CertificateDict,
    CheckpointInfo,
    EnvironmentFile,
    Json,
    ResultFile,
    RunDirectory,
    SplitFile,
    Stretch,
    describe_environment,
    hash_source,
)
from recombine.tasks import Task
from recombine.train import TRAINING_VERSION, Clock, Trainer, Watcher, fit, intervals

COPIES_IN_TRAINING = 4  # parameters, gradients and two moments

_log = logging.getLogger(__name__)


def resolve_device(device: str) -> torch.device:
    """The device with a name; `auto` is the first accelerator that torch finds, otherwise the CPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError):
        raise InputError(
            f"device {device!r} is not available: expected auto, cpu, or an accelerator that torch finds"
        ) from None


def train_run(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    device: str = "auto",
    evaluation_instances: int | None = None,
    compile: bool = False,
    compile_steps: int | None = None,
    watch: Watcher | None = None,
) -> RunDirectory:
    """Train a configuration in its run directory, from the last checkpoint if there is one, and evaluate it.

    A finished run stays as it is, unless it was evaluated with another number of instances or another version of the
    evaluation. `compile` trains under `torch.compile`, `compile_steps` that many whole steps at a time; both change results
    by rounding only and are not part of the configuration.
    """
    check_evaluation_instances(evaluation_instances)
    place = resolve_device(device)
    config = replace(config, task=config.task.prepare())
    config.task.check_batch_size(config.training.batch_size)
    check_size(config.model, config.task, copies=COPIES_IN_TRAINING)
    model = config.build_model()  # invalid sizes are errors before anything is written
    run = open_directory(config, Path(out))
    finish_run(
        run,
        config,
        model,
        place,
        evaluation_instances=evaluation_instances,
        compile=compile,
        compile_steps=compile_steps,
        watch=watch,
    )
    return run


def check_evaluation_instances(evaluation_instances: int | None) -> None:
    """Require a positive number, or None for the task's own."""
    if evaluation_instances is not None:
        check_positive(evaluation_instances=evaluation_instances)


def open_directory(config: RunConfig, out: Path, origins: dict[str, str] | None = None) -> RunDirectory:
    """The run directory of a configuration, new or existing."""
    contents = {"origins": config.origins if origins is None else origins, **config.as_dict()}
    run = RunDirectory.create(out, config.name, contents, identity=config.identity)
    recorded = RunConfig.from_dict(run.config, code=(type(config.task), type(config.model)))
    if recorded != config:
        raise InputError(f"{run.path} holds another configuration: expected the one that its name was made from")
    return run


def finish_run(
    run: RunDirectory,
    config: RunConfig,
    model: nn.Module,
    device: torch.device,
    *,
    evaluation_instances: int | None,
    compile: bool = False,
    compile_steps: int | None = None,
    watch: Watcher | None = None,
) -> None:
    """Train what is left of a run, evaluate the model and write `result.json`."""
    num_instances = config.task.evaluation_instances if evaluation_instances is None else evaluation_instances
    with run.lock():
        if is_up_to_date(run, num_instances):
            _log.info("%s is finished already", run.path)
            return
        trainer = Trainer(model, config.task, config.training, device, compile=compile, compile_steps=compile_steps)
        clock = restore(run, trainer)
        if run.finished:
            _log.warning("%s: evaluating again, on %d instances per split", run.path, num_instances)
        else:
            run.write_json("split.json", describe_split(config.task))
            for name, content in config.task.artifacts().items():
                run.write_bytes(name, content)
            record_environment(run, device, trainer.step)
            run.rewind_metrics(trainer.step)
        fit(trainer, run=run, clock=clock, watch=watch, **intervals(config.training.steps))
        evaluation = evaluate_predictor(model, config.task, num_instances=num_instances, device=device)
        run.write_json("result.json", summarise(config, model, evaluation, clock, num_instances))
        run.drop_previous_checkpoint()


def is_up_to_date(run: RunDirectory, num_instances: int) -> bool:
    """Whether a run is finished, and evaluated by this version on this number of instances per split."""
    if not run.finished:
        return False
    result = run.read_json("result.json")
    version = result.get("versions", {}).get("evaluation")
    return (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)


def restore(run: RunDirectory, trainer: Trainer) -> Clock:
    """Load the last good checkpoint into a trainer, if there is one; returns the clock that goes on from there."""
    checkpoint = run.load_checkpoint(trainer.device, fall_back=True)
    if checkpoint is None:
        if run.finished:
            raise InputError(f"{run.path} has a result but no checkpoint: delete it to train the run again")
        return Clock()
    tensors, info = checkpoint
    check_step(run, info, trainer.config.steps)
    if not run.finished:
        _log.info("%s resumes at step %d", run.path, info["step"])
    trainer.load_state(tensors, info["step"])
    clock = Clock()
    return Clock(**{name: info.get(name, 0) for name in clock.state()})  # type: ignore[arg-type]


def check_step(run: RunDirectory, info: CheckpointInfo, steps: int) -> None:
    """Require the step of a checkpoint to be one that its run has."""
    if not 0 <= info["step"] <= steps:
        raise InputError(f"{run.path} has a checkpoint of step {info['step']}: expected one from 0 to {steps}")


def record_environment(run: RunDirectory, device: torch.device, step: int) -> None:
    """Write the environment; one in which earlier steps were trained is kept, and the difference is logged."""
    current = describe_environment(device)
    history: list[Stretch] = []
    if step > 0 and (run.path / "environment.json").exists():
        stored = cast(EnvironmentFile, run.read_json("environment.json"))
        previous = stored.pop("previous", [])  # type: ignore[misc]
        history = [stretch for stretch in (*previous, stored) if stretch.get("first_step", 0) < step]
    latest: Stretch = {**current, "first_step": step}
    if history:
        changes = describe_changes(cast(Json, history[-1]), cast(Json, current))
        if changes:
            _log.warning("%s resumes at step %d in another environment: %s", run.path, step, changes)
        else:
            latest = history.pop()
    run.write_json("environment.json", {**latest, "previous": history})


def describe_changes(before: Json, after: Json) -> str:
    """What differs between two environments, in one line."""
    changed = [name for name in after if before.get(name) != after[name]]
    return ", ".join(f"{name} {_shorten(before.get(name))} → {_shorten(after[name])}" for name in changed)


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"


def describe_split(task: Task) -> SplitFile:
    """The certificate and the compositions; those of `test` are those of `train`."""
    return {
        "certificate": cast(CertificateDict, task.split.certificate.as_dict()),
        "compositions": {
            split: [list(composition) for composition in task.split.compositions(split)]
            for split in task.splits
            if split != "test"
        },
    }


def summarise(
    config: RunConfig, model: nn.Module, evaluation: Evaluation, clock: Clock, num_instances: int
) -> ResultFile:
    """What `result.json` holds."""
    scores = evaluation.scores
    return {
        "task": config.task.name,
        "model": config.model.kind,
        "label": config.model.label,
        "num_parameters": count_parameters(model),
        "split_sha256": config.task.split.certificate.sha256,
        "seed": config.task.seed,
        "steps": config.training.steps,
        "seconds": round(clock.seconds, 3),
        "steps_per_second": round(clock.steps_per_second, 3),
        "versions": {
            "task": version_of(type(config.task)),
            "model": version_of(type(config.model)),
            "training": TRAINING_VERSION,
            "evaluation": EVALUATION_VERSION,
        },
        "evaluation_instances": num_instances,
        "evaluation_source_sha256": hash_source(),
        "metrics": describe_metrics(config.task, scores.values()),
        "scores": scores_as_dict(scores),
        "composition_sums": {
            split: {name: [list(sums) for sums in metric.sums] for name, metric in metrics.items()}
            for split, metrics in scores.items()
        },
        "baselines": evaluation.baselines,
    }
