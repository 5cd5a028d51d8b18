"""Tensors that a task computes once per device."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")


def once_per_device(make: Callable[[Any, torch.device], Value]) -> Callable[[Any, torch.device | str], Value]:
    """Decorator for a method that takes a device: the value for each device is computed once and kept with the object.

    Used for frozen weights, which would otherwise be copied to the device for every batch.
    """

    @wraps(make)
    def look_up(self: Any, device: torch.device | str) -> Value:
        device = torch.device(device)
        values: dict[torch.device, Value] = vars(self).setdefault(f"{make.__name__} by device", {})
        if device not in values:
            values[device] = make(self, device)
        return values[device]

    return look_up
