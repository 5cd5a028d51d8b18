"""Errors that a user can cause: one line with the value, what was expected and the choices.

Packages that only some users need, each in an extra of this package. A missing one is an error that names its extra.

Refuse what cannot fit into memory before any of it is taken.

Sizes come from the command line and from files that others wrote. Without a check, a size that is too large ends in a
traceback, in a machine that stops responding, or in a process that the operating system kills without a word.
"""

from __future__ import annotations

import difflib
import importlib
import os
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode: control, format, surrogates, ends of lines


class InputError(ValueError):
    """Invalid input; the command line prints the message as one line and exits with code 2."""


def spell_out(text: str) -> str:
    """Text whose control characters, line ends and marks of direction are written out: a name cannot command a terminal."""
    return "".join(
        sign.encode("unicode_escape").decode() if unicodedata.category(sign) in NOT_SHOWN else sign for sign in text
    )


def check_choice(kind: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise raise an error that lists them and names the nearest."""
    choices = tuple(map(str, choices))
    if value not in choices:
        close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.75)
        nearest = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"unknown {kind} {value!r}: expected one of {', '.join(choices)}{nearest}")
    return value


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise an error that names a value and what was expected, unless the condition holds."""
    if not condition:
        raise InputError(f"{name} is {value!r}: expected {expected}")


def check_positive(**values: int) -> None:
    """Require each named value to be a whole number of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}: expected a whole number of at least 1")


def import_extra(package: str, *, extra: str, user: str, instead: str = "") -> ModuleType:
    """A package that may not be installed. `user` is what needs it, `instead` what to do without it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"{user} needs the package {package}: expected it to be installed (pip install 'recombine[{extra}]'){instead}"
        ) from None


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
