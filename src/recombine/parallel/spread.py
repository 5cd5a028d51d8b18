"""A model on several processes: a copy in each (`DistributedDataParallel`), or a part in each (FSDP2, `fully_shard`).

A sharded model keeps a slice of every parameter, gradient and optimizer moment in each process. A block of a `ModuleList` is
put together for the time of its forward and backward pass only. In checkpoints tensors are whole, so a run can be resumed
with any number of processes, sharded or not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from recombine.errors import InputError
from recombine.parallel.group import Group

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

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
