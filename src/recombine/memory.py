"""Refuse what cannot fit into memory before any of it is taken.

Sizes come from the command line and from files that others wrote. Without a check, a size that is too large ends in a
traceback, in a machine that stops responding, or in a process that the operating system kills without a word.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from recombine.errors import InputError

NEGLIGIBLE = 1 << 24
"""Bytes that every machine has: callers that ask often need not ask for so few, nor compose the message."""
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of containers


def require_memory(num_bytes: int, what: str) -> None:
    """Raise an error that says how much is needed and how much there is, if it is more than the machine has."""
    if num_bytes > total_memory():
        raise InputError(
            f"{what} takes {format_bytes(num_bytes)} of memory: expected at most {format_bytes(total_memory())}, "
            "which is what this machine has"
        )


@cache
def total_memory() -> int:
    """Bytes that this process could have at most: of the machine, or of the container that it runs in."""
    limits = [2**63]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in LIMIT_FILES:
        try:
            limits.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # not in a container, or "max"
            continue
    return min(limit for limit in limits if limit > 0)


def format_bytes(num_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    unit = 0
    while unit + 1 < len(UNITS) and num_bytes >= 1000 ** (unit + 1):
        unit += 1
    if unit + 1 == len(UNITS) and num_bytes >= 1000 ** (unit + 1):
        return f"more than 1,000 {UNITS[unit]}"
    return f"{num_bytes / 1000**unit:.3g} {UNITS[unit]}"


def format_count(count: int) -> str:
    """A whole number with separators; only the power of ten if it is astronomical."""
    if count < 10**18:
        return f"{count:,}"
    return f"more than 10^{int((count.bit_length() - 1) * 0.30103)}"
