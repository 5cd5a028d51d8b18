"""Errors a user can cause: one line that names the value, what was expected and the choices."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the command line prints it as one line and exits with code 2."""


def check_choice(kind: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, otherwise say what the choices are."""
    choices = tuple(choices)
    if value not in choices:
        raise InputError(f"unknown {kind} {value!r}: expected one of {', '.join(choices)}")
    return value


def check_positive(**values: int) -> None:
    """Require each named value to be a whole number of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}: expected a whole number of at least 1")
