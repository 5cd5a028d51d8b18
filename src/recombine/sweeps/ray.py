"""Train runs as tasks of Ray, on a cluster of this machine or on an existing one.

A task asks for as many CPUs as it has threads. Ray sets OMP_NUM_THREADS of a task to the CPUs it asks for, which is the same
number; the worker sets it once more, so that it holds on clusters that set something else. If a worker or its machine is
lost, Ray starts the task again, and the run continues from its last checkpoint in the shared folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from recombine.foundation.errors import InputError, check_positive, import_extra, require
from recombine.foundation.imports import safe_path
from recombine.sweeps.engine import CONNECT_TIMEOUT, Engine, Job, Outcome, count_threads
from recombine.sweeps.local import train_job

LOST_RETRIES_OF_RAY = 3
CLUSTER_PORT, CLIENT_PORT = 6379, 10001  # of HOST and of ray://HOST


class RayEngine(Engine):
    """Tasks of Ray. Without an address, a cluster on this machine is started and stopped with the sweep."""

    name = "ray"

    def __init__(self, *, jobs: int | None, threads: int, gpus: int = 0, address: str | None = None) -> None:
        check_positive(threads=threads, **({} if jobs is None else {"jobs": jobs}))
        require(gpus >= 0, "gpus", gpus, "0 or a positive number")
        self.ray = import_extra("ray", extra="ray", user="engine 'ray'")
        self.jobs, self.threads, self.gpus, self.address = jobs, threads, gpus, address
        if address is not None and not self.ray.is_initialized():
            check_answers(address)

    def describe(self) -> str:
        where = f"the cluster at {self.address}" if self.address else "this machine"
        limit = "" if self.jobs is None else f", at most {self.jobs} at a time"
        gpus = f" and {self.gpus:g} GPU" if self.gpus else ""
        return f"Ray tasks on {where}{limit}, each with {count_threads(self.threads)}{gpus}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        ray = self.ray
        with self._connected():
            self._check_resources()
            task = ray.remote(train_job).options(
                num_cpus=self.threads, num_gpus=self.gpus, max_retries=LOST_RETRIES_OF_RAY
            )
            unsent = iter(jobs)
            sent: dict[Any, str] = {}
            try:
                while True:
                    room = None if self.jobs is None else self.jobs - len(sent)
                    sent.update({task.remote(job): job.key for job in itertools.islice(unsent, room)})
                    if not sent:
                        return
                    for done in ray.wait(list(sent), num_returns=1)[0]:
                        yield self._collect(done, sent.pop(done))
            finally:
                for left in sent:
                    ray.cancel(left, force=True)

    def _collect(self, done: Any, key: str) -> Outcome:
        try:
            outcome: Outcome = self.ray.get(done)
            return outcome
        except self.ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            if "No module named" in str(error):
                raise InputError(
                    f"the workers of Ray cannot load the package ({lines[-1]}): expected it installed"
                ) from None
            return Outcome(key=key, error=f"the worker of Ray was lost: {lines[0] if lines else error}", kind="lost")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Connected to a cluster; one that was connected before is used and left alone."""
        ray = self.ray
        if ray.is_initialized():
            yield
            return
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        if self.address is None:
            options |= {"address": "local", "num_cpus": (self.jobs or 1) * self.threads}
        else:
            options |= {"address": self.address}
            del options["include_dashboard"]
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without a GPU, leave the variables alone
        try:
            with safe_path():
                ray.init(**options)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"Ray at {self.address or 'this machine'} cannot be used ({first})") from None
        try:
            yield
        finally:
            ray.shutdown()

    def _check_resources(self) -> None:
        """Require that the cluster could run one task at all; Ray would wait for ever."""
        available = self.ray.cluster_resources()
        for name, needed in (("CPU", self.threads), ("GPU", self.gpus)):
            if needed > available.get(name, 0):
                raise InputError(
                    f"each run needs {needed:g} {name}, the cluster has {available.get(name, 0):g}: expected fewer"
                )


def check_answers(address: str) -> None:
    """Require that something answers at an address within a time limit; `ray.init` would try for minutes.

    `auto` without RAY_ADDRESS is left to Ray, which looks for a cluster on this machine.
    """
    if address == "auto" and (address := os.environ.get("RAY_ADDRESS", "auto")) == "auto":
        return
    host, _, port = address.removeprefix("ray://").partition(":")
    require(not port or port.isdigit(), "address", address, "auto, HOST:PORT or ray://HOST:PORT")
    default = CLIENT_PORT if address.startswith("ray://") else CLUSTER_PORT
    try:
        socket.create_connection((host, int(port or default)), timeout=CONNECT_TIMEOUT).close()
        return
    except OSError as error:
        reason = error.strerror or str(error)
    raise InputError(
        f"the cluster at {address} does not answer ({reason}): expected an answer within {CONNECT_TIMEOUT:g} seconds"
    )
