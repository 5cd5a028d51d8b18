"""Faults, and what they cost: work in a forked process is killed, starved of disk or memory, or stripped of its rights.

After a fault the same call is made again: how long it took, and what was missing then. With `RECOMBINE_RECOVERY_LOG=FILE`, as
`make soak` sets it, each recovery is a line of JSON in that file; `docs/write_reliability.py` makes the table of
`docs/reliability.md` from them.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from recombine.foundation import files

Done = TypeVar("Done")

CAPABILITY_VERSION = 0x20080522  # of linux/capability.h


def in_fork(work: Callable[[], int | None], *, kill_after: float | None = None, errors: Path | None = None) -> int:
    """The exit code of `work` in a process of its own, or minus the signal that ended it.

    `kill_after` sends SIGKILL after so many seconds, if the process still runs. Standard error goes to `errors`.
    """
    child = os.fork()
    if child == 0:
        code = 99
        try:
            torch.set_num_threads(1)
            if errors is not None:
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
                sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            code = work() or 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    if kill_after is not None:
        deadline = time.monotonic() + kill_after
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def limit_files(num_bytes: int) -> None:
    """Let no file of this process grow beyond a size: the error is that of a disk that is full, with another number."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def limit_memory(num_bytes: int) -> None:
    """Let this process have so many bytes more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def drop_rights() -> None:
    """Make root an ordinary user as far as file modes go; does nothing for others."""
    if os.getuid() == 0:
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
        nothing = (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None, use_errno=True).capset(header, nothing) == 0, os.strerror(ctypes.get_errno())


def kill_self() -> None:
    """End as a power failure would: no handler runs, no buffer is written."""
    os.kill(os.getpid(), signal.SIGKILL)


class Stopwatch:
    """Seconds of the clock, and of the processor for this process and those that it has waited for."""

    def __init__(self) -> None:
        self.started, self.started_cpu = time.monotonic(), sum(os.times()[:4])

    def read(self) -> dict[str, float]:
        seconds, cpu_seconds = time.monotonic() - self.started, sum(os.times()[:4]) - self.started_cpu
        return {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3)}


def recover(
    fault: str, case: str, call_again: Callable[[], Done], find_lost: Callable[[Done], list[str]], *, tried: int = 1
) -> Done:
    """Make the call that comes after `tried` faults, record its seconds, and fail if anything was lost."""
    stopwatch = Stopwatch()
    done = call_again()
    times = stopwatch.read()
    lost = find_lost(done)
    record(fault, case, tried=tried, lost=lost, times=times)
    assert lost == [], f"after {fault}, {case}"
    return done


def record(
    fault: str, case: str, *, tried: int, lost: list[str] | None = None, times: Mapping[str, float] | None = None
) -> None:
    """A line of the log, if there is one. Without `times`, nothing had to be called again."""
    path = os.environ.get("RECOMBINE_RECOVERY_LOG")
    if path:
        line = {"fault": fault, "case": case, "tried": tried, "lost": lost or [], **(times or {})}
        with open(path, "a") as log:  # one short write, so that lines of several processes do not mix
            log.write(json.dumps(line) + "\n")


def differences(state: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Names of the entries that two states do not share."""
    missing = object()
    return sorted(
        name for name in state.keys() | expected.keys() if state.get(name, missing) != expected.get(name, missing)
    )


def kill_at_random(
    fault: str,
    case: str,
    work: Callable[[Path], Any],
    read_state: Callable[[Path], Mapping[str, Any]],
    folder: Path,
    num_kills: int,
) -> Path:
    """Kill `work` at random moments, resume it each time, and compare its state with an undisturbed one.

    `work` writes to the folder it is passed. Returns the last folder.
    """
    started = time.monotonic()
    assert in_fork(partial(work, folder / "undisturbed")) == 0
    seconds = time.monotonic() - started
    undisturbed = read_state(folder / "undisturbed")
    draw = random.Random(case)
    killed = tries = recovered = 0  # `recovered`: kills after which a process has come to its end
    out = folder / "disturbed-0"
    while killed < num_kills:
        tries += 1
        assert tries < 20 * num_kills, "too fast to be killed"
        stopwatch = Stopwatch()
        code = in_fork(partial(work, out), kill_after=draw.uniform(0, seconds))
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        seconds *= 0.7 if code == 0 else 1.1  # a machine may be busier now than it was before
        if code == 0:
            assert differences(read_state(out), undisturbed) == []
            if killed > recovered:
                record(fault, case, tried=killed - recovered, times=stopwatch.read())
            recovered, out = killed, folder / f"disturbed-{tries}"
    find_lost = lambda _: differences(read_state(out), undisturbed)  # noqa: E731
    recover(fault, case, partial(in_fork, partial(work, out)), find_lost, tried=killed - recovered)
    return out


def kill_at_operations(
    fault: str,
    work: Callable[[Path], Any],
    read_state: Callable[[Path], Mapping[str, Any]],
    folder: Path,
    numbers: Iterable[int],
) -> int:
    """Kill `work` at these operations on files, resume it each time, and compare. Returns how many of them there were."""
    work(folder / "undisturbed")
    find_lost = partial(differences, expected=read_state(folder / "undisturbed"))
    for count, number in enumerate(numbers):
        out = folder / str(number)
        code = in_fork(partial(_work_until, number, work, out))
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            return count
        recover(fault, f"operation {number}", partial(_work_and_read, work, read_state, out), find_lost)
    return count + 1


def _work_and_read(work: Callable[[Path], Any], read_state: Callable[[Path], Done], out: Path) -> Done:
    work(out)
    return read_state(out)


def _work_until(number: int, work: Callable[[Path], Any], out: Path) -> None:
    """Work until the n-th operation on files."""
    Countdown(number).install()
    work(out)


class Countdown:
    """Kills the process at the n-th operation on files: before it, after it, or with half of the bytes written."""

    def __init__(self, number: int) -> None:
        self.left = number

    def reached(self) -> bool:
        self.left -= 1
        return self.left < 0

    def install(self) -> None:
        for name in ("fsync", "replace", "link"):
            setattr(os, name, partial(self.count, getattr(os, name)))
        files.open = self.open  # type: ignore[attr-defined]

    def count(self, operation: Callable[..., Done], *arguments: Any, **options: Any) -> Done:
        if self.reached():
            kill_self()
        done = operation(*arguments, **options)
        if self.reached():
            kill_self()
        return done

    def open(self, path: Path, mode: str, **options: Any) -> Any:
        file = open(path, mode, **options)  # noqa: SIM115
        write = file.write

        def write_or_die(content: Any) -> int:
            if self.reached():
                write(content[: len(content) // 2])
                file.flush()
                kill_self()
            return write(content)

        return _Halved(file, write_or_die)


class _Halved:
    """A file whose writes are counted."""

    def __init__(self, file: Any, write: Callable[[Any], int]) -> None:
        self.file, self.write = file, write

    def __enter__(self) -> _Halved:
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)
