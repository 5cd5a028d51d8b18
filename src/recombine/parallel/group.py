"""The processes that train one model together. Process 0 leads: it alone reads and writes files and talks to the user.

`Group` is a single process, for which every exchange is trivial; `ProcessGroup` exchanges through `torch.distributed`. What
the leader may take long to do (evaluation, files) is waited for without a time limit. An exchange in a training step has one.
A process that dies closes its connections, so the others notice at once in both cases.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from recombine.errors import InputError

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
