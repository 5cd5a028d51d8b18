"""How large a model would be, found out without building it.

The model is built on torch's `meta` device, where tensors have shapes and no content. Only its first layers are built: all
layers are alike, so the rest follows. A configuration with 10^9 layers is therefore refused in milliseconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from recombine.errors import InputError
from recombine.memory import format_count, require_memory
from recombine.models.base import ModelConfig
from recombine.tasks.base import Task

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
