"""Join the processes that `torchrun` started; it tells each its number through environment variables."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist

from recombine.errors import InputError
from recombine.parallel.group import ALONE, Group, ProcessGroup

TIMEOUT = "RECOMBINE_PROCESS_TIMEOUT"  # seconds within which the other processes must take part in a step
DEFAULT_TIMEOUT = 600
PATIENCE = timedelta(days=30)
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def num_processes() -> int:
    """Number of processes that a launcher such as `torchrun` started; 1 without one."""
    launched = all(name in os.environ for name in VARIABLES)
    return _read_number("WORLD_SIZE") if launched else 1


def local_rank() -> int:
    """Number of this process on its machine, which is the number of its device."""
    return _read_number("LOCAL_RANK") if num_processes() > 1 else 0


def is_follower() -> bool:
    """Whether another process reads, writes and speaks for this one."""
    return num_processes() > 1 and _read_number("RANK") > 0


def join_group(device: torch.device) -> Group:
    """The processes that train together: those of the launcher, or this one alone."""
    return ALONE if num_processes() == 1 else _join(device.type)


@cache
def _join(device_type: str) -> ProcessGroup:
    backend = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}.get(device_type)
    if backend is None:
        raise InputError(f"device {device_type!r} cannot train with several processes: expected cpu or cuda")
    seconds = _read_number(TIMEOUT, DEFAULT_TIMEOUT)
    if not dist.is_initialized():
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise InputError(
                f"the processes of the training did not meet at {address} within {seconds} s "
                f"({str(error).splitlines()[0]}): expected {num_processes()}"
            ) from None
    return ProcessGroup(dist.new_group(backend="gloo", timeout=PATIENCE))


def leave_group() -> None:
    """Close the connections to the other processes at the end."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        _join.cache_clear()


def _read_number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit() or (name == TIMEOUT and int(text) == 0):
        raise InputError(f"{name} is {text!r}: expected a whole number")
    return int(text)
