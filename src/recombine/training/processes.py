"""The processes that train one model together. Process 0 leads: it alone reads and writes files and talks to the user.

`Group` is a single process, for which every exchange is trivial; `ProcessGroup` exchanges through `torch.distributed`. What
the leader may take long to do (evaluation, files) is waited for without a time limit. An exchange in a training step has one.
A process that dies closes its connections, so the others notice at once in both cases.

Join the processes that `torchrun` started; it tells each its number through environment variables.

A model on several processes: a copy in each (`DistributedDataParallel`), or a part in each (FSDP2, `fully_shard`).

A sharded model keeps a slice of every parameter, gradient and optimizer moment in each process. A block of a `ModuleList` is
put together for the time of its forward and backward pass only. In checkpoints tensors are whole, so a run can be resumed
with any number of processes, sharded or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from recombine.foundation.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Tensors = dict[str, Tensor]


class LostProcessError(RuntimeError):
    """Another process of the same training ended, or does not answer."""


class Group:
    """The processes of a training; this class is for one process alone."""

    rank = 0
    size = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process reads, writes and speaks."""
        return self.rank == 0

    def rows(self, batch_size: int) -> range | None:
        """This process's rows of every batch; None for all of them."""
        return None

    def combine(self, weight: float | Tensor, stop: bool) -> tuple[float, bool]:
        """What to multiply the loss of this process's rows by, and whether any process was asked to stop."""
        return 1.0, stop

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        return tensor

    def collect(self, number: float) -> list[float]:
        """The number that each process has, in their order."""
        return [number]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return any(self.collect(float(flag)))

    def lead(self, work: Callable[[], Any]) -> Any:
        """Let the leader do some work while the others wait; all get its result, which must be JSON, or its error."""
        return work()

    def share_tensors(self, tensors: Tensors | None) -> Tensors | None:
        """The leader's tensors, on the CPU of every process."""
        return tensors

    @contextlib.contextmanager
    def name_lost_process(self, how_to_go_on: str) -> Iterator[None]:
        """Turn the error of an exchange with a process that is gone into a `LostProcessError`."""
        yield


ALONE = Group()


class ProcessGroup(Group):
    """Processes that `torchrun` started. `patient` is a group of the same processes without a time limit."""

    def __init__(self, patient: dist.ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.patient = patient

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
        dist.all_reduce(numbers, group=self.patient)
        return numbers.tolist()

    def lead(self, work: Callable[[], Any]) -> Any:
        if not self.is_leader:
            outcome = self._share_json(None)
            if "error" in outcome:
                raise InputError(outcome["error"])  # which the leader reports
            return outcome["result"]
        try:
            result = work()
        except BaseException as error:
            self._share_json({"error": str(error) or type(error).__name__})
            raise
        self._share_json({"result": result})
        return result

    def share_tensors(self, tensors: Tensors | None) -> Tensors | None:
        about = {name: (list(t.shape), str(t.dtype)) for name, t in tensors.items()} if tensors is not None else None
        described: Mapping[str, tuple[list[int], str]] | None = self._share_json({"tensors": about})["tensors"]
        if described is None:
            return None
        shared: Tensors = {}
        for name, (shape, dtype) in described.items():
            kind = getattr(torch, dtype.removeprefix("torch."))
            tensor = torch.empty(shape, dtype=kind) if tensors is None else tensors[name].detach().cpu().contiguous()
            dist.broadcast(tensor, src=0, group=self.patient)
            shared[name] = tensor
        return shared

    def _share_json(self, value: Any) -> Any:
        """The leader's value; as text, because nothing here needs pickle."""
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(content)])
        dist.broadcast(length, src=0, group=self.patient)
        if not self.is_leader:
            content = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self.patient)
        return json.loads(bytes(content.tolist()))

    @contextlib.contextmanager
    def name_lost_process(self, how_to_go_on: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = _find_reason(error)
            if reason is None:
                raise
            raise LostProcessError(
                f"process {self.rank} of {self.size}: another process of this training ended or does not answer "
                f"({reason}); {how_to_go_on}"
            ) from None


def _find_reason(error: RuntimeError) -> str | None:
    """Why an exchange failed; None for an error of another kind."""
    text = str(error)
    for sign, reason in {
        "closed by peer": "connection closed",
        "reset by peer": "connection closed",
        "Broken pipe": "connection closed",
        "imed out": "no answer within the time limit",
        "imeout": "no answer within the time limit",
    }.items():
        if sign in text:
            return reason
    return "connection lost" if isinstance(error, dist.DistError) or "gloo" in text.lower() else None


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


Forward = Callable[[Tensor], Tensor]


class Spread(NamedTuple):
    """A model on its device, and the function that training calls."""

    model: nn.Module
    forward: Forward


def spread(
    model: nn.Module,
    group: Group,
    device: torch.device,
    *,
    shard: bool = False,
    compile: bool = False,
    example: Tensor | None = None,
) -> Spread:
    """Put a model on this process's device, as a copy or as a part. `example` is an input of one row."""
    if shard and (compile or group.size == 1):
        actual = "with compile" if compile else "with one process"
        raise InputError(f"shard is set {actual}: expected several processes (torchrun) and no compile")
    if shard:
        return Spread(shard_model(model, device), model)
    model = model.to(device)
    # a whole graph or an error: past its limit of recompilations torch would otherwise go on eagerly and say nothing
    forward: nn.Module = torch.compile(model, dynamic=False, fullgraph=True) if compile else model  # type: ignore[assignment]
    if group.size == 1:
        return Spread(model, forward)
    assert example is not None
    return Spread(model, _copy(forward, device, has_unused_parameters(model, example)))


def _copy(forward: nn.Module, device: torch.device, has_unused: bool) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of broadcast_buffers, whose new name torch 2.6 does not have
        return DistributedDataParallel(
            forward,
            device_ids=[device] if device.type == "cuda" else None,
            broadcast_buffers=False,  # they are equal: the keys of dropout
            find_unused_parameters=has_unused,
        )


def shard_model(model: nn.Module, device: torch.device) -> nn.Module:
    """Shard every block of the model's lists of modules, then what is left."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # about changing the predictions in place, which no loss does
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.to(device)


def has_unused_parameters(model: nn.Module, example: Tensor) -> bool:
    """Whether the predictions depend on fewer parameters than there are; these must not be waited for."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(model(example).float().sum(), parameters, allow_unused=True)
    return any(gradient is None for gradient in gradients)


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether this process has a part of the tensor only. A process that shards nothing does not load FSDP's tensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def gather(tensor: Tensor) -> Tensor:
    """A whole tensor from the parts in all processes, which must all call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def shard_like(tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Whole tensors of a checkpoint, cut as the parameter is whose name they end with."""
    cut: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        owner = parameters.get(name.split("/")[-1])
        if owner is not None and is_sharded(owner) and tensor.shape == owner.shape:
            from torch.distributed.tensor import distribute_tensor

            whole = tensor.to(owner.device)
            cut[name] = distribute_tensor(whole, owner.device_mesh, owner.placements, src_data_rank=None)
        else:
            cut[name] = tensor
    return cut
