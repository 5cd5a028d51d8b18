"""The base class of model configurations: frozen dataclasses that build a model for a task.

A configuration lists what its model requires of a task (`needs`); `build_model` raises an error if the task lacks it. A
model names the sites that probes read in `probe_sites`, a tuple of `Site`. In a model without them, probes read its children.

How large a model would be, found out without building it.

The model is built on torch's `meta` device, where tensors have shapes and no content. Only its first layers are built: all
layers are alike, so the rest follows. A configuration with 10^9 layers is therefore refused in milliseconds.

A module that a user built and trained with `recombine.benchmark`: its class is known, its constructor is not.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import nn

from recombine.foundation.errors import InputError, Settings, format_count, require_memory
from recombine.tasks.base import Task


class Need(NamedTuple):
    """A requirement of a model on a task, and the error message for a task that does not meet it."""

    is_met: Callable[[Task], bool]
    lack: str  # may name properties of the task, as in "{task.sequence_length}"
    expected: str


ENCODING = Need(
    lambda task: task.encoding_dim > 0,
    "does not say in its inputs which task it is",
    "whose inputs begin with an encoding, such as 'hyperteacher'",
)
ISOLATED_QUERIES = Need(
    lambda task: task.isolated_queries,
    "asks queries that see the examples",
    "whose queries are apart from the examples, such as 'in_context'",
)
MODULES = Need(lambda task: task.num_modules is not None, "has no number of modules", "that has one, or a code_dim")
SAME_LENGTHS = Need(
    lambda task: task.train_length == task.sequence_length,
    "has {task.train_length} tokens in training and {task.sequence_length} in evaluation",
    "with as many in both, because the model has positions",
)
HIDDEN_ANSWERS = Need(
    lambda task: not task.requires_causal_model,
    "shows in later steps what was done in earlier ones",
    "that does not, or a model with causal=True",
)
TOKENS = Need(
    lambda task: task.vocabulary_size is not None,
    "has inputs of {task.input_dim} features",
    "whose inputs are numbers of tokens, such as 'language'",
)
FEATURES = Need(
    lambda task: task.vocabulary_size is None,
    "has numbers of tokens as inputs",
    "whose inputs are features, or the model 'language_model'",
)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings, ABC):
    """Sizes and choices of a model; the task gives the sizes of its inputs and predictions."""

    kind: ClassVar[str]
    # Raise it when the same sizes and seed give different initial parameters or another function than before.
    version: ClassVar[int] = 1

    @property
    def label(self) -> str:
        """What distinguishes this model from others on the same task; part of the name of its run."""
        return self.kind

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the model requires of a task, in addition to inputs and predictions of some size."""
        return ()

    def check_task(self, task: Task) -> None:
        """Raise an error if the task lacks something the model requires."""
        for need in (*(() if TOKENS in self.needs else (FEATURES,)), *self.needs):
            if not need.is_met(task):
                lack = need.lack.format(task=task)
                raise InputError(
                    f"model {self.kind!r} does not fit task {task.name!r}, which {lack}: expected a task {need.expected}"
                )

    def count_parts(self, task: Task) -> dict[str, int]:
        """Numbers of parameters of the parts of the model, where it tells them apart; `train` prints them."""
        return {}

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """The model with its initial parameters, from inputs of the task to predictions."""


class Site(NamedTuple):
    """A site that probes read: the output, or the input, of the submodule at `path`."""

    name: str
    path: str
    side: Literal["output", "input"] = "output"
    token: Literal["last", "mean"] = "last"  # the last, or the mean over all


BYTES_PER_NUMBER = 4
MAX_TENSORS = 50_000  # some 3,000 layers: more take minutes to build and to save
FIRST_LAYERS = (2, 3)


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Numbers of parameters and buffers, and of tensors that hold them."""

    num_numbers: int
    num_tensors: int


def check_size(config: ModelConfig, task: Task, *, copies: int = 1) -> None:
    """Raise an error if a model has too many tensors, or if several copies of its parameters do not fit into memory.

    Training needs four copies: parameters, gradients and two moments. Models from outside the package are not checked, since
    they may not be able to build themselves without content.
    """
    if not type(config).__module__.startswith("recombine.models."):
        return
    size = measure_size(config, task)
    shown = f"a {config.kind} with {format_count(size.num_numbers)} parameters"
    if size.num_tensors > MAX_TENSORS:
        raise InputError(
            f"{shown} in {format_count(size.num_tensors)} tensors is too deep: expected at most {MAX_TENSORS:,} tensors"
        )
    what = f"{shown}, with gradients and moments," if copies > 1 else shown
    require_memory(BYTES_PER_NUMBER * copies * size.num_numbers, what)


def measure_size(config: ModelConfig, task: Task) -> ModelSize:
    """The size of the model that a configuration builds for a task."""
    depth: int = getattr(config, "num_layers", 0)
    fewer, more = FIRST_LAYERS
    if depth <= more:
        return _build_without_content(config, task)
    first = _build_without_content(dataclasses.replace(config, num_layers=fewer), task)  # type: ignore[call-arg]
    second = _build_without_content(dataclasses.replace(config, num_layers=more), task)  # type: ignore[call-arg]
    return ModelSize(
        num_numbers=first.num_numbers + (depth - fewer) * (second.num_numbers - first.num_numbers),
        num_tensors=first.num_tensors + (depth - fewer) * (second.num_tensors - first.num_tensors),
    )


def _build_without_content(config: ModelConfig, task: Task) -> ModelSize:
    task = dataclasses.replace(task)  # a copy, because tensors that it caches here have no content
    try:
        with torch.device("meta"):
            model = config.build(task)
    except (RuntimeError, OverflowError) as error:  # more than torch can count
        raise InputError(
            f"a {config.kind} of these sizes cannot be built ({str(error).splitlines()[0]}): expected smaller sizes"
        ) from None
    tensors = [*model.parameters(), *model.buffers()]
    return ModelSize(num_numbers=sum(tensor.numel() for tensor in tensors), num_tensors=len(tensors))


@dataclass(frozen=True, kw_only=True)
class OutsideModule(ModelConfig):
    """What a run directory records about such a module. `registry.bind_module` adds the function that builds it."""

    kind: ClassVar[str] = "outside_module"

    name: str
    """Name of the module's class."""
    fingerprint: str
    """Hash of its source, its structure and its initial parameters."""

    @property
    def label(self) -> str:
        return self.name

    def build(self, task: Task) -> nn.Module:
        raise InputError(
            f"model {self.name!r} was built outside this package: name a function of the task that builds it, "
            "with --code FILE.py:FUNCTION or code=[function]"
        )
