"""A trainer: a model, its optimizer and its batches, in one process or as one of several that train together.

The sum of the losses since the last row of `metrics.jsonl` is part of the trainer's state.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from recombine.attention.layer import DropoutKeys
from recombine.foundation.errors import InputError
from recombine.foundation.native import keep_freed_memory
from recombine.tasks.base import Task
from recombine.tasks.sampling import Batch
from recombine.training.config import Precision, TrainingConfig, build_optimizer
from recombine.training.score import check_predictions


@dataclass(kw_only=True)
class Clock:
    """Seconds spent in training, and steps per second without the warm-up of each process that trained."""

    seconds: float = 0.0
    timed_steps: int = 0
    timed_seconds: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def add(self, steps: int, *, warm: bool) -> None:
        """Count the steps since the last call."""
        now = time.perf_counter()
        self.seconds += now - self._last
        if warm:
            self.timed_steps += steps
            self.timed_seconds += now - self._last
        self._last = now

    def skip(self) -> None:
        """Do not count the time since the last call, which was spent on evaluation or saving."""
        self._last = time.perf_counter()

    @property
    def steps_per_second(self) -> float:
        return self.timed_steps / self.timed_seconds if self.timed_seconds else 0.0


class BatchGroups:
    """The training batches of a task, generated in groups; caches the group of the last batch.

    For small batches the overhead of the calls dominates, so a task may generate several batches at once
    (`Task.sample_many`). Batch i always belongs to the group from i - i % n to the next multiple of n, with
    n = `task.count_batches_at_once(batch_size)`: the last bits of a matrix product can depend on the number of its rows,
    and with fixed groups a resumed training has the same bits.
    """

    def __init__(
        self, task: Task, *, batch_size: int, rows: range | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.task = task
        self.batch_size = batch_size
        self.rows = rows
        self.device = device
        self.group_size = task.count_batches_at_once(batch_size)
        self._first = -1
        self._group: list[Batch] = []

    def __getitem__(self, index: int) -> Batch:
        first = index - index % self.group_size
        if first != self._first:
            self._first, self._group = -1, []  # the next group reuses the memory of this one
            self._group = self.generate(first)
            self._first = first
        return self._group[index - first]

    def generate(self, first: int) -> list[Batch]:
        """The group of batches that starts at `first`, a multiple of the group's size."""
        return self.task.sample_many(
            "train", first, self.group_size, batch_size=self.batch_size, rows=self.rows, device=self.device
        )


class Group:
    """The processes that train one model together; this class is for a single one, where every exchange is trivial.

    The leader alone reads and writes files and reports to the user. `recombine.training.processes.ProcessGroup` is the group
    of the processes that `torchrun` started.
    """

    rank = 0
    size = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def rows(self, batch_size: int) -> range | None:
        """This process's rows of every batch; None for all of them."""
        return None

    def combine(self, weight: float | Tensor, stop: bool) -> tuple[float, bool]:
        """The factor of the loss of this process's rows, and whether any process received a signal to stop."""
        return 1.0, stop

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        return tensor

    def collect(self, number: float) -> list[float]:
        """The number of every process, by rank."""
        return [number]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return any(self.collect(float(flag)))

    def run_on_leader(self, work: Callable[[], Any]) -> Any:
        """Run a function on the leader while the others wait; returns its result, which must be JSON, or raises its error."""
        return work()

    def broadcast(self, content: bytes) -> bytes:
        """The leader's bytes."""
        return content

    @contextlib.contextmanager
    def name_lost_process(self, advice: str) -> Iterator[None]:
        """Turn the error of an exchange with a process that is gone into a `LostProcessError`."""
        yield


SINGLE_PROCESS = Group()
ADAMW_STATE = ("step", "exp_avg", "exp_avg_sq")  # of each parameter


class DivergedError(RuntimeError):
    """A loss or a parameter became infinite or NaN."""


class Trainer:
    """A model, its optimizer and its batches; `advance` is one training step: forward, loss, gradient, update."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        device: torch.device | str,
        *,
        compile: bool = False,
        group: Group = SINGLE_PROCESS,
        shard: bool = False,
    ) -> None:
        if shard and (compile or group.size == 1):
            actual = "with compile" if compile else "with one process"
            raise InputError(f"shard is set {actual}: expected several processes (torchrun) and no compile")
        self.task = task
        self.config = config
        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.group = group
        self.is_sharded = shard
        self.is_compiled = compile
        self.rows = group.rows(config.batch_size)
        self.batches = BatchGroups(task, batch_size=config.batch_size, rows=self.rows, device=self.device)
        self.model, self.forward = self._place(model)
        self.optimizer = build_optimizer(self.model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(self.model, first_row=0 if self.rows is None else self.rows.start)
        self.step = 0
        self.is_stopping = False  # the processes agreed to stop
        self.loss_sum = torch.zeros((), device=self.device)  # of this process, since the last row of metrics

    def _place(self, model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        """The model on this process's device, and its forward function: compiled, replicated or sharded."""
        if self.is_sharded:
            from recombine.training.processes import shard_model

            sharded = shard_model(model, self.device)
            return sharded, sharded
        model = model.to(self.device)
        # a whole graph or an error: past its limit of recompilations torch would go on eagerly without a warning
        forward: Any = torch.compile(model, dynamic=False, fullgraph=True) if self.is_compiled else model
        if self.group.size > 1:
            from recombine.training.processes import replicate

            forward = replicate(
                forward, model, self.device, self.task.sample("train", 0, rows=range(1), device=self.device).inputs
            )
        return model, forward

    def advance(self, *, stop: bool = False) -> Tensor:
        """One optimizer step; returns this process's share of its loss, still on the device.

        The processes exchange in every step whether one of them received a signal to `stop`, so that all stop at the same one.
        """
        config = self.config
        batch = self.batches[self.step]
        seed = self.task.seed if config.model_seed is None else config.model_seed
        with use_precision(config.precision, self.device, compiled=self.is_compiled), self.dropout.at(seed, self.step):
            predictions = check_predictions(self.forward(batch.inputs), num_rows=len(batch))
        loss = self.task.loss(predictions.float(), batch)
        factor, self.is_stopping = self.group.combine(self.task.loss_weight(batch), stop)
        self.optimizer.zero_grad(set_to_none=True)
        (loss if factor == 1 else loss * factor).backward()
        if config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate_at(self.step)
        self.optimizer.step()
        self.step += 1
        share = loss.detach() if self.group.size == 1 else loss.detach() * (factor / self.group.size)
        self.loss_sum += share
        return share

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer state under flat names. All processes of a sharded model must call this."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        if any(sums := self.group.collect(self.loss_sum.item())):  # zero at a row of metrics
            tensors["loss_sums"] = torch.tensor(sums)
        if not self.is_sharded:
            return tensors
        whole = ((name, t.full_tensor() if hasattr(t, "full_tensor") else t) for name, t in tensors.items())
        return {name: tensor.cpu() for name, tensor in whole if self.group.is_leader}

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from the tensors of a checkpoint."""
        if self.is_sharded:
            from recombine.training.processes import shard_like

            tensors = shard_like(tensors, dict(self.model.named_parameters()))
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            names = {key: f"optimizer/{key}/{name}" for key in ADAMW_STATE}  # none of a parameter without a gradient
            self.optimizer.state[parameter] = {key: tensors[full] for key, full in names.items() if full in tensors}
        self.step = step
        sums, rank = tensors.get("loss_sums", torch.zeros(1)), self.group.rank
        if len(sums) != self.group.size:  # another number of processes: the leader continues the sum of all
            sums = sums.sum().expand(1) if rank == 0 else torch.zeros(rank + 1)
        self.loss_sum.fill_(float(sums[rank]))

    def require_finite(self, loss: float) -> None:
        """Raise before an infinite or NaN parameter is saved."""
        broken = find_infinite(self.model)
        if self.group.any(broken is not None) or not math.isfinite(loss):
            what = f"parameter {broken}" if broken else f"loss {loss}"
            raise DivergedError(
                f"training diverged before step {self.step}: {what} is not finite; try a lower learning rate"
            )


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load a model's parameters from a checkpoint, whose names and shapes must agree."""
    state = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the model: {str(error).splitlines()[-1].strip()}") from None


def find_infinite(model: nn.Module) -> str | None:
    """The first parameter with an infinite or NaN value; of a sharded model, in the part of this process."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if not torch.isfinite(local).all():
            return name
    return None


def use_precision(
    precision: Precision, device: torch.device, *, compiled: bool = False
) -> contextlib.AbstractContextManager[object]:
    """Context manager for a forward pass in float32, or in bf16 for dense layers and the activations between them.

    With bf16 the operands of a dense layer are rounded to 8 bits of significand, products are summed in float32, and the
    result is rounded again; parameters, attention scores, loss and optimizer stay in float32. On hardware with bf16
    instructions, and in a compiled pass, this is `torch.autocast`. On other CPUs torch emulates them one number at a time,
    about twenty times slower than float32, so there the same rounding is applied around float32 products.
    """
    stack = contextlib.ExitStack()
    if precision == "bf16":
        stack.enter_context(torch.autocast(device.type, torch.bfloat16))
        if device.type == "cpu" and not compiled and not multiplies_bf16():
            stack.enter_context(_RoundedProducts())
    return stack


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products of bf16 numbers."""
    known = (torch.cpu._is_avx512_bf16_supported, torch.cpu._is_amx_tile_supported)
    return any(supported() for supported in known) or torch.backends.mkldnn.is_acl_available()


class _RoundedProducts(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.linear:
            return rounded_linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def rounded_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`functional.linear` as bf16 hardware computes it; gradients are rounded in the same places."""
    with torch.autocast("cpu", enabled=False):
        bias = None if bias is None else _round(bias)
        return functional.linear(_round(input), _round(weight), bias).bfloat16()


def _round(x: Tensor) -> Tensor:
    return x.bfloat16().float()
