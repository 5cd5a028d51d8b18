"""A module that a user built and trained with `recombine.benchmark`: its class is known, its constructor is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from recombine.errors import InputError
from recombine.models.base import ModelConfig
from recombine.tasks.base import Task


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
