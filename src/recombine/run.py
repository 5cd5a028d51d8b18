"""One run, from configuration to result: train in a run directory, resume, load; or benchmark a model of your own.

The hash of the configuration names the directory, so a finished run is never run twice and a killed one resumes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recombine.errors import InputError, check_choice
from recombine.evaluate import Scores, score, score_baselines, scores_as_dict
from recombine.models import MODELS, ModelConfig, build_model, count_parameters
from recombine.registry import Code, describe_origin, find_model, find_task, match_classes, version_of
from recombine.store import Json, RunDirectory, describe_environment
from recombine.tasks import TASKS, Task
from recombine.tasks.base import SCALES, Scale
from recombine.train import TRAINING_VERSION, Clock, Trainer, TrainingConfig, Watcher, fit, intervals, load_model

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run."""

    task: Task
    model: ModelConfig
    training: TrainingConfig

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.model.label}".replace("_", "-")

    def build_model(self) -> nn.Module:
        """The model with its first parameters."""
        seed = self.task.seed if self.training.model_seed is None else self.training.model_seed
        return build_model(self.model, self.task, seed=seed)

    def as_dict(self) -> Json:
        """Names, versions and settings, as `config.json` holds them."""
        task, model = type(self.task), type(self.model)
        return {
            "task": {"name": task.name, "version": version_of(task), **asdict(self.task)},
            "model": {"kind": model.kind, "version": version_of(model), **asdict(self.model)},
            "training": {"version": TRAINING_VERSION, **asdict(self.training)},
        }

    @property
    def identity(self) -> Json:
        """What the hash is made of: names, versions, and settings that are not the defaults of their class.

        So a setting that is added later, with a default that changes nothing, leaves the hash of earlier runs as it was.
        """
        owners: dict[str, Any] = {"task": self.task, "model": self.model, "training": self.training}
        defaults = {role: {each.name: each.default for each in fields(owner)} for role, owner in owners.items()}
        return {
            role: {
                name: value
                for name, value in settings.items()
                if name not in defaults[role] or value != defaults[role][name]
            }
            for role, settings in self.as_dict().items()
        }

    @property
    def origins(self) -> Json:
        """Where classes from outside the package came from."""
        origins = {"task": describe_origin(type(self.task)), "model": describe_origin(type(self.model))}
        return {role: origin for role, origin in origins.items() if origin is not None}

    @classmethod
    def from_dict(cls, config: Json, code: Sequence[Code] = ()) -> RunConfig:
        """The inverse of `as_dict`; refuses fields it does not know.

        `code` names classes from outside the package: a file or module with a class name, or the class itself.
        """
        try:
            task, model, training = (dict(config[part]) for part in ("task", "model", "training"))
            task_class, model_class = match_classes(code, config)
            name, kind = task.pop("name"), model.pop("kind")
            if task_class is None:
                task_class = TASKS[_require_own("task", name, TASKS)]
            if model_class is None:
                model_class = MODELS[_require_own("model", kind, MODELS)]
            for part in (task, model, training):
                part.pop("version", None)
            return cls(
                task=_strict(task_class, task),
                model=_strict(model_class, model),
                training=_strict(TrainingConfig, training),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the configuration lacks or misshapes {error}: expected one this version wrote") from None


def default_run(task: str | type[Task], scale: Scale = "paper", model: str | None = None) -> RunConfig:
    """The run that `recombine train TASK --scale SCALE --model MODEL` starts from."""
    check_choice("scale", scale, SCALES)
    preset = (find_task(task) if isinstance(task, str) else task).preset(scale, model)
    return RunConfig(
        task=preset.task,
        model=find_model(preset.model)(**preset.sizes),
        training=TrainingConfig(**preset.training),
    )


def _require_own(kind: str, name: Any, own: Mapping[str, type]) -> str:
    if name not in own:
        raise InputError(
            f"{kind} {name!r} is not part of this package: expected one of {', '.join(own)}, "
            f"or its code named with --code FILE.py:CLASS"
        )
    return name


def _strict(owner: Any, values: Json) -> Any:
    known = [each.name for each in fields(owner)]
    for name in values:
        check_choice(f"field of {owner.__name__}", name, known)
    return owner(**values)


def resolve_device(device: str) -> torch.device:
    """`auto` is the first accelerator there is, else the CPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError):
        raise InputError(
            f"device {device!r} is not available: expected auto, cpu, or an accelerator torch finds"
        ) from None


def train_run(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    device: str = "auto",
    evaluation_instances: int | None = None,
    compile: bool = False,
    watch: Watcher | None = None,
) -> RunDirectory:
    """Train a configuration in its run directory, from its last checkpoint if there is one; a finished run stays as it is.

    `compile` trains under `torch.compile`: the same up to rounding, hence no part of the configuration.
    """
    place = resolve_device(device)
    model = config.build_model()  # refuses bad sizes before anything is written
    contents = {"origins": config.origins, **config.as_dict()}
    run = RunDirectory.create(Path(out), config.name, contents, identity=config.identity)
    if RunConfig.from_dict(run.config, code=(type(config.task), type(config.model))) != config:
        raise InputError(f"{run.path} holds another configuration: expected the one its name was made from")
    with run.lock():
        if run.finished:
            _log.info("%s is finished already", run.path)
            return run
        run.write_json("split.json", describe_split(config.task))
        run.write_json("environment.json", describe_environment(place))
        trainer = Trainer(model, config.task, config.training, place, compile=compile)
        clock = Clock()
        checkpoint = run.load_checkpoint(place)
        if checkpoint is not None:
            _log.info("%s resumes at step %d", run.path, checkpoint[1]["step"])
            trainer.load_state(checkpoint[0], checkpoint[1]["step"])
            clock = Clock(**{name: checkpoint[1].get(name, 0) for name in clock.state()})
        run.rewind_metrics(trainer.step)
        fit(trainer, run=run, clock=clock, watch=watch, **intervals(config.training.steps))
        scores = score(model, config.task, num_instances=evaluation_instances, device=place)
        baselines = score_baselines(config.task, num_instances=evaluation_instances)
        run.write_json("result.json", {**summarise(config, model, scores, clock), "baselines": baselines})
    return run


def describe_split(task: Task) -> Json:
    """The certificate, and the compositions themselves in words."""
    return {
        "certificate": task.split.certificate.as_dict(),
        "compositions": {
            split: [list(composition) for composition in task.split.compositions(split)]
            for split in task.splits
            if split != "test"
        },
    }


def summarise(config: RunConfig, model: nn.Module, scores: Scores, clock: Clock) -> Json:
    """What `result.json` holds."""
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
        "scores": scores_as_dict(scores),
        "composition_sums": {
            split: {name: each.sums for name, each in metrics.items()} for split, metrics in scores.items()
        },
    }


def benchmark(
    model: nn.Module,
    task: Task,
    *,
    training: TrainingConfig | None = None,
    evaluation_instances: int | None = None,
    device: str = "auto",
    watch: Watcher | None = None,
) -> Scores:
    """Train a model of your own on a task and score it: any module from the task's inputs to predictions."""
    training = TrainingConfig() if training is None else training
    place = resolve_device(device)
    trainer = Trainer(model, task, training, place)
    fit(trainer, run=None, clock=Clock(), watch=watch, **intervals(training.steps))
    return score(model, task, num_instances=evaluation_instances, device=place)


def load_run(
    path: Path | str, device: str = "auto", *, code: Sequence[Code] = ()
) -> tuple[RunDirectory, RunConfig, nn.Module]:
    """An existing run with its configuration and its trained model; `code` names its classes from outside the package."""
    run = RunDirectory.open(path)
    config = RunConfig.from_dict(run.config, code)
    place = resolve_device(device)
    checkpoint = run.load_checkpoint(place)
    if checkpoint is None:
        raise InputError(f"{run.path} has no checkpoint yet: expected a run that has trained")
    model = config.build_model().to(place)
    load_model(model, checkpoint[0])
    return run, config, model.eval()
