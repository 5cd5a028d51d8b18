"""Work in a forked process, which can be killed, starved of disk or memory, or stripped of its rights."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

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
