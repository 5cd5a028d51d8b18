"""What a run directory records besides numbers of training: the environment, the split, the result."""

from __future__ import annotations

import logging
from typing import cast

import torch
from torch import nn

from recombine.evaluate import EVALUATION_VERSION, Evaluation, describe_metrics, describe_splits, scores_as_dict
from recombine.models import count_parameters
from recombine.registry import version_of
from recombine.run.config import RunConfig
from recombine.store import (
    CertificateDict,
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
from recombine.train import TRAINING_VERSION, Clock

_log = logging.getLogger(__name__)


def is_up_to_date(run: RunDirectory, num_instances: int) -> bool:
    """Whether a run is finished, and evaluated by this version on this number of instances per split."""
    if not run.finished:
        return False
    result = run.read_json("result.json")
    version = result.get("versions", {}).get("evaluation")
    return (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)


def record_environment(run: RunDirectory, device: torch.device, step: int, num_processes: int = 1) -> None:
    """Write the environment; one in which earlier steps were trained is kept, and the difference is logged."""
    current = describe_environment(device, num_processes)
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
        "splits": describe_splits(config.task),
        "scores": scores_as_dict(scores),
        "composition_sums": {
            split: {name: [list(sums) for sums in metric.sums] for name, metric in metrics.items()}
            for split, metrics in scores.items()
        },
        "baselines": evaluation.baselines,
    }
