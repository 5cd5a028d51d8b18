"""What the configuration of a model is: a frozen dataclass that builds the model for a task.

A configuration lists what its model needs of a task (`needs`); `build_model` refuses a task that lacks it. A model names the
places that probes look at: `probe_sites`, a tuple of `Site`. In a model without them, probes look at its children.
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
    """Something that a model needs of a task, and what to say of a task that lacks it."""

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


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings, ABC):
    """Sizes and choices of a model; the task gives the sizes of its inputs and predictions."""

    kind: ClassVar[str]
    # Raise it when the same sizes and seed give other initial parameters or another function than before.
    version: ClassVar[int] = 1

    @property
    def label(self) -> str:
        """What tells this model from others on the same task, in the name of its run."""
        return self.kind

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the model needs of a task, beside inputs and predictions of some size."""
        return ()

    def check_task(self, task: Task) -> None:
        """Refuse a task that lacks something the model needs."""
        for need in self.needs:
            if not need.is_met(task):
                lack = need.lack.format(task=task)
                raise InputError(
                    f"model {self.kind!r} does not fit task {task.name!r}, which {lack}: expected a task {need.expected}"
                )

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """The model with its initial parameters, from inputs of the task to predictions."""


class Site(NamedTuple):
    """A place to look inside a model: what the submodule at `path` returns, or what it is given."""

    name: str
    path: str
    side: Literal["output", "input"] = "output"
    token: Literal["last", "mean"] = "last"  # the last, or the mean over all
