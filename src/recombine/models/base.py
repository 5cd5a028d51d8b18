"""The base class of model configurations: frozen dataclasses that build a model for a task.

A configuration lists what its model requires of a task (`needs`); `build_model` raises an error if the task lacks it. A
model names the sites that probes read in `probe_sites`, a tuple of `Site`. In a model without them, probes read its children.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import nn

from recombine.errors import InputError
from recombine.settings import Settings
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
