"""The configuration of a run: task, model and training, with their versions.

Training uses AdamW. The learning rate rises linearly from 0 during warm-up and falls along half a cosine to `final_fraction`
of its peak (Attention as a Hypernetwork, table A3). Weight decay is not applied to parameters of one dimension: biases and
norms. (The authors' release also decays the biases of the attention projections, because there they have two dimensions.)
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import nn

from recombine.foundation.errors import (
    InputError,
    Settings,
    check_choice,
    check_positive,
    require,
    settings_as_dict,
    settings_from_dict,
    without_defaults,
)
from recombine.models.base import (
    Code,
    ModelConfig,
    OutsideModule,
    build_model,
    check_model,
    check_task,
    describe_origin,
    find_model,
    find_task,
    is_own,
    match_classes,
    models_by_kind,
    version_of,
)
from recombine.tasks.base import SCALES, Scale, Task
from recombine.tasks.families import TASKS
from recombine.training.directory import hash_config
from recombine.training.schema import Json

Schedule = Literal["cosine", "constant"]
Precision = Literal["float32", "bf16"]


def build_optimizer(
    model: nn.Module, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """Fused AdamW with two parameter groups: with and without weight decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, eps=1e-8, fused=True)


# Raise it when the same configuration gives other parameters than before: another order of batches, schedule or update.
TRAINING_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """How a model is trained."""

    steps: int = 50_000
    """Number of optimizer steps."""
    batch_size: int = 128
    """Instances per step."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.1
    """Decoupled weight decay of parameters with two or more dimensions."""
    warmup_steps: int = 100
    """Number of steps in which the learning rate rises linearly from 0."""
    schedule: Schedule = "cosine"
    """Learning rate after the warm-up."""
    final_fraction: float = 0.1
    """Learning rate at the end of the cosine, as a fraction of the peak."""
    beta2: float = 0.999
    """Decay rate of AdamW's second moments."""
    gradient_clip: float | None = None
    """Largest norm of the gradient (default: not clipped)."""
    precision: Precision = "float32"
    """Precision of the forward pass. With bf16, parameters, scores and optimizer stay float32."""
    model_seed: int | None = None
    """Random seed for the initial parameters (default: the task's seed)."""

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, batch_size=self.batch_size)
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "a positive number")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or a positive number")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or a positive whole number")
        require(0 <= self.final_fraction <= 1, "final_fraction", self.final_fraction, "a number from 0 to 1")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "a number from 0 to below 1")
        clip = self.gradient_clip
        require(clip is None or clip > 0, "gradient_clip", clip, "a positive number")

    def rate_at(self, step: int) -> float:
        """The learning rate at a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)


MAX_SEED = 2**63 - 1  # the largest that torch takes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run."""

    task: Task
    model: ModelConfig
    training: TrainingConfig

    def __post_init__(self) -> None:
        if not 0 <= self.model_seed <= MAX_SEED:
            raise InputError(f"the seed is {self.model_seed}: expected a whole number from 0 to 2**63 - 1")

    @property
    def name(self) -> str:
        """What the run directory is called, before the hash."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.task.name}-{self.model.label}")

    @property
    def model_seed(self) -> int:
        """Random seed for the initial parameters."""
        return self.task.seed if self.training.model_seed is None else self.training.model_seed

    def prepare(self) -> RunConfig:
        """The configuration that a run records: files that the task depends on are prepared and named by their content."""
        return replace(self, task=self.task.prepare())

    def build_model(self, *, copies: int = 1) -> nn.Module:
        """The model with its initial parameters; an error if memory does not hold so many copies of them."""
        return build_model(self.model, self.task, seed=self.model_seed, copies=copies)

    def as_dict(self) -> Json:
        """Names, versions and settings, as `config.json` holds them."""
        task, model = type(self.task), type(self.model)
        return {
            "task": {"name": task.name, "version": version_of(task), **settings_as_dict(self.task)},
            "model": {"kind": model.kind, "version": version_of(model), **settings_as_dict(self.model)},
            "training": {"version": TRAINING_VERSION, **settings_as_dict(self.training)},
        }

    @property
    def identity(self) -> Json:
        """What the hash is made of: names, versions, and the settings that differ from the defaults of their class.

        A setting that is added later, with a default that changes nothing, therefore leaves the hashes of earlier runs alone.
        """
        return self.without_defaults(self.as_dict())

    def without_defaults(self, config: Json) -> Json:
        """The settings of a configuration of the same classes that differ from their defaults."""
        return {role: without_defaults(getattr(self, role), settings) for role, settings in config.items()}

    @property
    def directory_name(self) -> str:
        """The name of the run directory: two configurations with one name are the same run."""
        return f"{self.name}-{hash_config(self.identity)}"

    @property
    def origins(self) -> dict[str, str]:
        """Where classes from outside the package came from."""
        origins = {"task": describe_origin(type(self.task)), "model": describe_origin(type(self.model))}
        return {role: origin for role, origin in origins.items() if origin is not None}

    @classmethod
    def from_dict(cls, config: Json, code: Sequence[Code] = (), origins: Mapping[str, str] | None = None) -> RunConfig:
        """The inverse of `as_dict`. Unknown fields, other versions and values of the wrong type are errors.

        `code` names classes from outside the package: a file or module with a class name, or the class itself. `origins`
        is what the run directory says about them, which is only shown to the user.
        """
        try:
            task, model, training = (dict(config[part]) for part in ("task", "model", "training"))
            task_class, model_class = match_classes(code, config)
            name, kind = task.pop("name"), model.pop("kind")
            origins = {} if origins is None else origins
            if task_class is None:
                task_class = _find_own("task", name, TASKS, origins)
            if model_class is None:
                model_class = _find_own("model", kind, {**models_by_kind(), OutsideModule.kind: OutsideModule}, origins)
            check_version(f"task {name!r}", task.pop("version"), task_class)
            check_version(f"model {kind!r}", model.pop("version"), model_class)
            training.pop("version")
            return cls(
                task=settings_from_dict(task_class, task),
                model=settings_from_dict(model_class, model),
                training=settings_from_dict(TrainingConfig, training),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the configuration lacks or misshapes {error}: expected one this version wrote") from None


def default_run(
    task: str | type[Task], scale: Scale = "tiny", model: str | type[ModelConfig] | type[nn.Module] | None = None
) -> RunConfig:
    """The run that `recombine train TASK --scale SCALE --model MODEL` starts from."""
    check_choice("scale", scale, SCALES)
    task_class = find_task(task) if isinstance(task, str) else check_task(task)
    if model is not None:
        model_class = find_model(model) if isinstance(model, str) else check_model(model)
        if not is_own(model_class):  # the task has no sizes for it
            for field in fields(model_class):
                if field.default is MISSING and field.default_factory is MISSING:
                    raise InputError(
                        f"{model_class.__name__}.{field.name} has no default: expected one for every setting"
                    )
            preset = task_class.preset(scale)
            return RunConfig(task=preset.task, model=model_class(), training=TrainingConfig(**preset.training))
        model = model_class.kind
    preset = task_class.preset(scale, model)
    return RunConfig(
        task=preset.task,
        model=find_model(preset.model)(**preset.sizes),
        training=TrainingConfig(**preset.training),
    )


def check_version(role: str, recorded: Any, owner: type[Task] | type[ModelConfig]) -> None:
    """Require a run to have been made by this version of a class. A file that was edited since is only mentioned."""
    current = version_of(owner)
    if str(recorded).split("-")[0] != str(current).split("-")[0]:
        raise InputError(
            f"the run was made by version {recorded} of {role}: expected version {current}; train it again"
        )
    if recorded != current:
        _log.warning("the code of %s has changed since the run was made", role)


def _find_own(role: str, name: Any, own: Mapping[str, Any], origins: Mapping[str, str]) -> Any:
    if name not in own:
        origin = origins.get(role, "FILE.py:CLASS")
        raise InputError(
            f"{role} {name!r} is not part of this package: expected one of {', '.join(own)}, or its code with --code {origin}"
        )
    return own[name]
