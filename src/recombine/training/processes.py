"""One model trained by the processes that `torchrun` started: replicated (`DistributedDataParallel`) or sharded (FSDP2).

Evaluation and files can keep the leader busy for long, so the other processes wait for it without a time limit. An exchange in
a training step has one. A process that dies closes its connections, so the others notice at once in both cases.

A sharded model has a slice of every parameter, gradient and optimizer moment in each process. A block of a `ModuleList` is
gathered for its forward and backward pass only. Checkpoints hold whole tensors, so a run can be resumed with any number of
processes, sharded or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from recombine.foundation.errors import InputError
from recombine.training.session import num_processes, read_number
from recombine.training.trainer import Group

TIMEOUT = "RECOMBINE_PROCESS_TIMEOUT"  # seconds within which the other processes must take part in a step
DEFAULT_TIMEOUT = 600
COLLECTIVE_TIMEOUT = timedelta(days=30)  # of exchanges that wait for the leader


class LostProcessError(RuntimeError):
    """Another process of the same training ended, or does not answer."""


class ProcessGroup(Group):
    """Processes that `torchrun` started. `untimed` is a group of the same processes without a time limit."""

    def __init__(self, untimed: dist.ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.untimed = untimed

    def rows(self, batch_size: int) -> range:
        if batch_size < self.size:
            raise InputError(
                f"batch_size is {batch_size} with {self.size} processes: expected at least one row per process"
            )
        return range(batch_size * self.rank // self.size, batch_size * (self.rank + 1) // self.size)

    def combine(self, weight: float | Tensor, stop: bool) -> tuple[float, bool]:
        own = float(weight)
        totals = torch.tensor([own, float(stop)], dtype=torch.float64)
        dist.all_reduce(totals)
        # gradients are averaged over the processes, hence the factor
        return own * self.size / totals[0].item(), totals[1].item() > 0

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def collect(self, number: float) -> list[float]:
        numbers = torch.zeros(self.size, dtype=torch.float64)
        numbers[self.rank] = number
        dist.all_reduce(numbers, group=self.untimed)
        return numbers.tolist()

    def run_on_leader(self, work: Callable[[], Any]) -> Any:
        outcome: dict[str, Any] = {}
        try:
            outcome = {"result": work()} if self.is_leader else {}
        except BaseException as error:
            outcome = {"error": str(error) or type(error).__name__}
            raise
        finally:
            outcome = json.loads(self.broadcast(json.dumps(outcome).encode()))
        if "error" in outcome:
            raise InputError(outcome["error"])  # which the leader reports
        return outcome["result"]

    def broadcast(self, content: bytes) -> bytes:
        received = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
        length = torch.tensor([len(received)])
        dist.broadcast(length, src=0, group=self.untimed)
        if not self.is_leader:
            received = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(received, src=0, group=self.untimed)
        return received.numpy().tobytes()

    @contextlib.contextmanager
    def name_lost_process(self, advice: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = find_reason(error)
            if reason is None:
                raise
            raise LostProcessError(
                f"process {self.rank} of {self.size}: another process of this training ended or does not answer "
                f"({reason}); {advice}"
            ) from None


LOST_CONNECTION = ("closed by peer", "reset by peer", "Broken pipe")


def find_reason(error: RuntimeError) -> str | None:
    """Why an exchange failed; None for an error of another kind."""
    text = str(error)
    if any(sign in text for sign in LOST_CONNECTION):
        return "connection closed"
    if "imed out" in text or "imeout" in text:
        return "no answer within the time limit"
    return "connection lost" if isinstance(error, dist.DistError) or "gloo" in text.lower() else None


@cache
def join_processes(device_type: str) -> ProcessGroup:
    """Connect to the other processes, whose address `torchrun` passes in environment variables."""
    backend = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}.get(device_type)
    if backend is None:
        raise InputError(f"device {device_type!r} cannot train with several processes: expected cpu or cuda")
    seconds = read_number(TIMEOUT, DEFAULT_TIMEOUT, least=1)
    if not dist.is_initialized():
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise InputError(
                f"the processes of the training did not meet at {address} within {seconds} s "
                f"({str(error).splitlines()[0]}): expected {num_processes()}"
            ) from None
    return ProcessGroup(dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT))


def disconnect() -> None:
    """Close the connections to the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()
        join_processes.cache_clear()


def replicate(forward: nn.Module, model: nn.Module, device: torch.device, example: Tensor) -> nn.Module:
    """The forward function of a model whose gradients are averaged over the processes. `example` is an input of one row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of broadcast_buffers, whose new name torch 2.6 does not have
        return DistributedDataParallel(
            forward,
            device_ids=[device] if device.type == "cuda" else None,
            broadcast_buffers=False,  # they are equal: the keys of dropout
            find_unused_parameters=has_unused_parameters(model, example),
        )


def has_unused_parameters(model: nn.Module, example: Tensor) -> bool:
    """Whether some parameters do not influence the predictions; the processes must not wait for their gradients."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(model(example).float().sum(), parameters, allow_unused=True)
    return any(gradient is None for gradient in gradients)


def shard_model(model: nn.Module, device: torch.device) -> nn.Module:
    """Shard every block of the model's lists of modules, then the rest of the model."""
    # about changing the predictions in place, which no loss does
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.to(device)


def broadcast_tensors(tensors: Mapping[str, Tensor], group: Group) -> dict[str, Tensor]:
    """The leader's tensors, on the CPU of every process."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return load(group.broadcast(save(contiguous) if group.is_leader else b""))


def shard_like(tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Whole tensors of a checkpoint, each sharded like the parameter that its name ends with."""
    sharded = dict(tensors)
    for name, tensor in tensors.items():
        owner = parameters.get(name.split("/")[-1])
        if isinstance(owner, DTensor) and tensor.shape == owner.shape:
            whole = tensor.to(owner.device)
            sharded[name] = distribute_tensor(whole, owner.device_mesh, owner.placements, src_data_rank=None)
    return sharded
