"""What a fault cost: the same call without the fault, how long it took, and what was missing after it.

With `RECOMBINE_RECOVERY_LOG=FILE`, as `make soak` sets it, each recovery is a line of JSON in that file.
`docs/write_reliability.py` makes the table of `docs/reliability.md` from them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Done = TypeVar("Done")


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
