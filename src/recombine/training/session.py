"""The process around a run: its launcher, device and environment, signals to stop, trackers, and the progress bar."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import ClassVar

import torch

from recombine.attention.cpu import kernels as cpu_library
from recombine.foundation import native
from recombine.foundation.display import Meter, measure_progress, show_progress
from recombine.foundation.errors import InputError, check_positive
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json, MetricsRow, ResultFile
from recombine.training.score import Scores
from recombine.training.trainer import SINGLE_PROCESS, Group

_log = logging.getLogger(__name__)

SMALL_STEP = 1e8  # operations in a step, a few milliseconds of one thread: several would mostly wait for one another
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def num_processes() -> int:
    """Number of processes that a launcher such as `torchrun` started; 1 without one."""
    is_launched = all(name in os.environ for name in LAUNCHER_VARIABLES)
    return read_number("WORLD_SIZE") if is_launched else 1


def is_follower() -> bool:
    """Whether this process leaves files and messages to the leader."""
    return num_processes() > 1 and read_number("RANK") > 0


def read_number(name: str, default: int | None = None, *, least: int = 0) -> int:
    """A whole number from an environment variable."""
    text = os.environ.get(name, str(default))
    if not text.isdigit() or int(text) < least:
        raise InputError(f"{name} is {text!r}: expected a whole number")
    return int(text)


def join_group(device: torch.device) -> Group:
    """The processes that train together: those of the launcher, or this one alone."""
    if num_processes() == 1:
        return SINGLE_PROCESS
    from recombine.training.processes import join_processes

    return join_processes(device.type)


def leave_group() -> None:
    """Close the connections to the other processes, if there are any."""
    if num_processes() > 1:
        from recombine.training.processes import disconnect

        disconnect()


def resolve_device(device: str) -> torch.device:
    """The device with a name; `auto` is CUDA where torch finds it, otherwise the CPU.

    Under `torchrun` each process on a machine uses the CUDA device with its local rank.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and num_processes() > 1:
        device = f"cuda:{read_number('LOCAL_RANK')}"
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


def record_environment(run: RunDirectory, device: torch.device, step: int, num_processes: int = 1) -> None:
    """Write `environment.json`. It keeps the environments of earlier steps; a change is logged."""
    current = describe_environment(device, num_processes)
    history: list[Json] = []
    if step > 0 and (run.path / "environment.json").exists():
        stored = run.read_json("environment.json")
        stretches = [*stored.pop("previous", []), stored]
        history = [stretch for stretch in stretches if stretch.get("first_step", 0) < step]
    latest = {**current, "first_step": step}
    if history:
        if changes := describe_changes(history[-1], current):
            _log.warning("%s resumes at step %d in another environment: %s", run.path, step, changes)
        else:
            latest = history.pop()
    run.write_json("environment.json", {**latest, "previous": history})


def describe_changes(before: Json, after: Json) -> str:
    """The differences between two environments, in one line."""

    def shorten(value: object) -> str:
        return text if len(text := str(value)) <= 24 else f"{text[:12]}…"

    changed = [name for name in after if before.get(name) != after[name]]
    return ", ".join(f"{name} {shorten(before.get(name))} → {shorten(after[name])}" for name in changed)


SOURCE_SUFFIXES = (".py", ".c", ".h")


def describe_environment(device: torch.device | str, num_processes: int = 1) -> Json:
    """The environment of this process, for computations on `device` by this number of processes."""
    return {
        "recombine": metadata.version("recombine"),
        "source_sha256": hash_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": native.name_processor(),
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        "num_processes": num_processes,
        "kernel": describe_kernel(device),
    }


@cache  # it is the source that this process has loaded
def hash_source(rooms: tuple[str, ...] = ()) -> str:
    """SHA-256 of the package's Python and C source, or that of some rooms; the same from a checkout and from a wheel."""
    return hash_folder(Path(__file__).parent.parent, rooms)


def hash_folder(root: Path, rooms: tuple[str, ...] = ()) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCE_SUFFIXES):
        if rooms and path.relative_to(root).parts[0] not in rooms:
            continue
        digest.update(str(path.relative_to(root).as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe_kernel(device: torch.device | str) -> str:
    """The attention kernel that training on `device` uses: its name, and how it was compiled or why it is not used."""
    chosen = os.environ.get("RECOMBINE_KERNEL", "auto")
    if chosen not in ("auto", "cpu"):
        return f"{chosen} (RECOMBINE_KERNEL)"
    if torch.device(device).type != "cpu":
        return "reference (the compiled kernel is for CPUs)"
    library = cpu_library.open_library()
    if not isinstance(library, ctypes.CDLL):
        return f"reference ({library})"
    build = Path(library._name).stem.rsplit("-", 1)[-1]  # the hash of the compiled file
    command = native.find_compiler()
    version = [] if command is None else native.compiler_version(command).decode(errors="replace").splitlines()[:1]
    how = " ".join([*version, *native.FLAGS]) if command is not None else "compiled earlier"
    return f"cpu (build {build}, {how})"


@contextlib.contextmanager
def use_threads(number: int | None, operations: float) -> Iterator[None]:
    """Train with a number of threads; by default with one if a step has few operations, otherwise with torch's number."""
    before = torch.get_num_threads()
    check_positive(threads=before if number is None else number)
    torch.set_num_threads((1 if operations < SMALL_STEP else before) if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def use_deterministic_algorithms() -> Iterator[None]:
    """Let torch use only algorithms that give the same bits in every run, or raise an error where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is not deterministic
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class StoppedError(KeyboardInterrupt):
    """A signal stopped the training. Not an `Exception`, so that it is not reported as a failure of the run."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopRequest:
    """A signal to stop. The first one lets the training save a checkpoint at the next step; a second one stops at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.is_deferred = False  # while a checkpoint at the next step is possible

    @property
    def is_made(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        return "a signal to another process" if self.signal is None else self.signal.name

    @property
    def exit_code(self) -> int:
        """The exit code that shells report for a process ended by the signal."""
        return 128 + (signal.SIGTERM if self.signal is None else self.signal)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        is_second = self.is_made
        self.signal = signal.Signals(number)
        if is_second or not self.is_deferred:
            raise StoppedError(f"stopped by {self.name}", self.exit_code)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only record a first signal in this block, which checks `is_made` at every step."""
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False


@contextlib.contextmanager
def handle_stop_signals() -> Iterator[StopRequest]:
    """Receive signals in a `StopRequest`, in the main thread only.

    A signal that is already handled or ignored (`nohup`, the handler of a scheduler) is left alone. So is a SIGINT that is set
    to its default: whoever does that, such as the parent of a worker, wants the process to end at once.
    """
    request = StopRequest()
    names = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    untouched: dict[signal.Signals, object] = {signal.SIGINT: signal.default_int_handler}
    handled = [number for number, handler in before.items() if handler is untouched.get(number, signal.SIG_DFL)]
    for number in handled:
        signal.signal(number, request.receive)
    try:
        yield request
    finally:
        for number in handled:
            signal.signal(number, before[number])


class Tracker(ABC):
    """An experiment tracker: receives the rows of `metrics.jsonl` and the result. `recombine.integrations.trackers` has some."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, run: RunDirectory, step: int) -> None:
        """Start or continue the record of a run; rows after `step` will be added again."""

    @abstractmethod
    def add(self, row: MetricsRow) -> None:
        """Record a row of `metrics.jsonl`."""

    @abstractmethod
    def finish(self, result: ResultFile) -> None:
        """Record the result of a finished run."""

    @abstractmethod
    def close(self) -> None:
        """Close the record, whether the run is finished or not."""


class Tracking:
    """The trackers of a run; one that fails is dropped with a warning, because the run does not depend on it."""

    def __init__(self, trackers: Sequence[Tracker], run: RunDirectory, step: int) -> None:
        for tracker in trackers:
            tracker.start(run, step)
        self.trackers = list(trackers)

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of every tracker."""
        for tracker in list(self.trackers):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # any error of the tracker's package
                _log.warning("%s failed and is left out: %s", tracker.name, str(error).split("\n")[0])
                self.trackers.remove(tracker)


@dataclass
class Progress:
    """The state of a training at a row of metrics, for its watcher."""

    step: int
    steps: int
    loss: float
    steps_per_second: float
    scores: Scores | None = None


Watcher = Callable[[Progress], None]  # called at every row of metrics


SECONDS_BETWEEN_UPDATES = 1.0  # of the progress bar, within a logging interval


class TrainingBar:
    """A watcher for `train_run` or `benchmark` that shows the steps, the loss, the speed and the remaining time."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.last = meter, 0.0

    def __call__(self, progress: Progress) -> None:
        speed = progress.steps_per_second  # 0 in the first steps, which are not timed
        threads = f" on {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
        shown = f"  {speed:.{'1f' if speed >= 1 else '2g'}} steps/s{threads}" if speed else ""
        self.meter.update(progress.step, progress.steps, f"loss {progress.loss:.4g}{shown}")

    def before_step(self, step: int, steps: int) -> None:
        """Update within a logging interval too: with slow steps, the next row of metrics may be an hour away."""
        if (now := time.monotonic()) - self.last >= SECONDS_BETWEEN_UPDATES:
            self.last = now
            self.meter.update(step, steps, self.meter.note)


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[TrainingBar | None]:
    """Show the progress of a training on standard error; with `quiet`, nothing is shown and the watcher is None."""
    if quiet:
        with show_progress(False):
            yield None
        return
    with show_progress(), measure_progress(label, done=None) as meter:
        yield TrainingBar(meter)
