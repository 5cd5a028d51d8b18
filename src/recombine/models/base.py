"""What the configuration of a model is: a frozen dataclass that builds the model for a task.

A model names the places where probes find something: `probe_sites`, a tuple of `Site`. Of other models they see the children.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import nn

from recombine.errors import InputError
from recombine.settings import Settings
from recombine.tasks.base import Task


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

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """The model with its first parameters, from inputs of the task to predictions."""


def require_causal(task: Task, causal: bool) -> None:
    """Refuse a model that could read an answer from a later token."""
    if task.requires_causal_model and not causal:
        raise InputError(f"task {task.name!r} shows in later steps what was done in earlier ones: expected causal=True")


class Site(NamedTuple):
    """A place to look inside a model: what the submodule at `path` returns, or what it is given."""

    name: str
    path: str
    side: Literal["output", "input"] = "output"
    token: Literal["last", "mean"] = "last"  # the last, or the mean over all
