"""Signals during training: SIGINT, SIGTERM and SIGHUP ask for a checkpoint at the next step, and only a second one insists.

A signal that someone else handles or ignores (`nohup`, a scheduler's own handler) is left alone.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
UNTOUCHED = (signal.SIG_DFL, signal.default_int_handler)


class StoppedError(KeyboardInterrupt):
    """Training was stopped by a signal. Not an `Exception`, so that nothing takes it for a failure of the run."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopRequest:
    """Whether and how a training was asked to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.is_deferred = False  # set while a checkpoint at the next step is possible

    @property
    def is_made(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        return "a signal to another process" if self.signal is None else self.signal.name

    @property
    def exit_code(self) -> int:
        """What a shell calls a process that the signal ended."""
        return 128 + (signal.SIGTERM if self.signal is None else self.signal)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        insists = self.is_made
        self.signal = signal.Signals(number)
        if insists or not self.is_deferred:
            raise StoppedError(f"stopped by {self.name}", self.exit_code)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note a signal here; `is_made` is asked at every step."""
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False


@contextlib.contextmanager
def heed_signals() -> Iterator[StopRequest]:
    """Receive signals in a `StopRequest`; only the main thread can."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number in numbers if before[number] in UNTOUCHED and _is_ours(number, before[number])]
    for number in taken:
        signal.signal(number, request.receive)
    try:
        yield request
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _is_ours(number: int, handler: object) -> bool:
    """SIGINT is set to its default only by someone who wants the process to end at once, such as a worker's parent."""
    return number != signal.SIGINT or handler is signal.default_int_handler
