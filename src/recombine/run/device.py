"""Where a run is computed, and whether by deterministic algorithms only."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import torch

from recombine.errors import InputError
from recombine.parallel import local_rank, num_processes

_log = logging.getLogger(__name__)


def resolve_device(device: str) -> torch.device:
    """The device with a name; `auto` is CUDA where torch finds it, otherwise the CPU.

    Under `torchrun` each process on a machine takes the CUDA device with its own number.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and num_processes() > 1:
        device = f"cuda:{local_rank()}"
    try:
        torch.empty(0, device=device)
        torch_device = torch.device(device)
    except (RuntimeError, AssertionError):
        raise InputError(
            f"device {device!r} is not available: expected auto, cpu, or an accelerator that torch finds"
        ) from None
    if torch_device.type == "mps":
        _log.warning("device mps is untested: compare a short run with --device cpu before you rely on it")
    return torch_device


@contextlib.contextmanager
def use_deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let torch use only algorithms that give the same bits in every run, or raise an error where it has none."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is not deterministic
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
