"""Errors that a user can cause: one line with the value, what was expected and the choices."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

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
