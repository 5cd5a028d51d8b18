"""Whether a JSON value has the type that is declared for it, so that readers of a file can rely on its types.

Files may be cut short, edited, or made by someone else. Missing keys and values of the wrong type are named where a file
is read, not met later as an exception somewhere else. Keys that are not declared are allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from recombine.settings import PLAIN_TYPES, is_finite


def find_fault(value: Any, declared: Any, location: str = "", *, complete: bool = True) -> str | None:
    """What does not fit, in words, or None. With `complete=False`, keys may be missing."""
    if declared is Any:
        return None
    if is_typeddict(declared):
        return _find_in_object(value, declared, location, complete)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (NotRequired, Required):
        return find_fault(value, arguments[0], location, complete=complete)
    if origin in (Union, UnionType):
        faults = [find_fault(value, choice, location, complete=complete) for choice in arguments]
        return None if None in faults else faults[0]
    if origin is Literal:
        return None if value in arguments else _say(location, value, f"one of {', '.join(map(repr, arguments))}")
    if origin is list:
        if not isinstance(value, list):
            return _say(location, value, "a list")
        located = ((item, arguments[0], f"{location}[{number}]") for number, item in enumerate(value))
        return _first(located, complete)
    if origin is dict:
        if not isinstance(value, dict):
            return _say(location, value, "an object")
        return _first(((item, arguments[1], _join(location, key)) for key, item in value.items()), complete)
    return None if _is_plain(value, declared) else _say(location, value, PLAIN_TYPES.get(declared, str(declared)))


def _find_in_object(value: Any, declared: Any, location: str, complete: bool) -> str | None:
    if not isinstance(value, dict):
        return _say(location, value, "an object")
    fields, required = _fields(declared)
    missing = next((key for key in fields if key in required and key not in value), None)
    if missing is not None and complete:
        return f"{_join(location, missing)} is missing"
    located = ((value[key], hint, _join(location, key)) for key, hint in fields.items() if key in value)
    return _first(located, complete)


@cache
def _fields(declared: Any) -> tuple[dict[str, Any], frozenset[str]]:
    hints = get_type_hints(declared, include_extras=True)
    # `__required_keys__` knows nothing of NotRequired where annotations are strings
    optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
    return hints, frozenset(declared.__required_keys__ - optional)


def _is_plain(value: Any, declared: Any) -> bool:
    if declared is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and is_finite(value)
    if declared is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, declared)


def _first(located: Iterable[tuple[Any, Any, str]], complete: bool) -> str | None:
    faults = (find_fault(*location, complete=complete) for location in located)
    return next((fault for fault in faults if fault is not None), None)


def _join(location: str, key: Any) -> str:
    return f"{location}.{key}" if location else str(key)


def _say(location: str, value: Any, expected: str) -> str:
    text = repr(value)
    shown = text if len(text) <= 40 else f"{text[:30]}…"
    return f"{location or 'it'} is {shown}: expected {expected}"
