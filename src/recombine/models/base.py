"""What the configuration of a model is: a frozen dataclass that builds the model for a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from recombine.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """Sizes and choices of a model; the task gives the sizes of its inputs and predictions."""

    kind: ClassVar[str]

    @property
    def label(self) -> str:
        """What tells this model from others on the same task, in the name of its run."""
        return self.kind

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """The model with its first parameters, from inputs of the task to predictions."""
