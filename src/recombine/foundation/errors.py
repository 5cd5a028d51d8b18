"""Errors that a user can cause: one line with the value, what was expected and the choices.

Packages that only some users need, each in an extra of this package. A missing one is an error that names its extra.

Refuse what cannot fit into memory before any of it is taken.

Sizes come from the command line and from files that others wrote. Without a check, a size that is too large ends in a
traceback, in a machine that stops responding, or in a process that the operating system kills without a word.
"""

from __future__ import annotations

import difflib
import importlib
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

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


Owner = TypeVar("Owner")

# Types of a class by name; kept, because evaluating them takes most of the time of making a configuration.
_annotations: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

PLAIN_TYPES = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    NoneType: "nothing",
}


class Settings:
    """Base class of tasks, model configurations and training configurations."""

    def __new__(cls: type[Owner], *args: Any, **values: Any) -> Owner:
        check_settings(cls, values)
        return object.__new__(cls)


def check_settings(owner: type, values: Mapping[str, Any]) -> None:
    """Require each value to have the type of the field it is for; unknown names are left to the constructor."""
    annotations = _annotations(owner)
    for name, value in values.items():
        annotation = annotations.get(name)
        if get_origin(annotation) is Literal:
            check_choice(name, value, get_args(annotation))
        elif annotation is not None and not fits(value, annotation):
            raise InputError(f"{name} is {value!r}: expected {describe(annotation)}")


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value has a type; types that settings do not usually have are not checked."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple and arguments[1:] == (...,):
        return isinstance(value, tuple) and all(fits(item, arguments[0]) for item in value)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return annotation not in PLAIN_TYPES or isinstance(value, annotation)


def is_finite(value: int | float) -> bool:
    """Whether a number is a float that is neither NaN nor infinite, or a whole number that could be one."""
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def describe(annotation: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(map(describe, arguments))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple and arguments[1:] == (...,):
        return f"several values, each {describe(arguments[0])}"
    return PLAIN_TYPES.get(annotation, str(annotation))


def settings_as_dict(settings: Any) -> dict[str, Any]:
    """The values of a dataclass by name; a whole number for a float is written as a float, so that 1 and 1.0 are the same."""
    annotations = _annotations(type(settings))
    return {
        name: float(value) if isinstance(value, int) and _is_float(annotations[name]) else value
        for name, value in asdict(settings).items()
    }


def settings_from_dict(owner: type[Owner], values: Mapping[str, Any]) -> Owner:
    """The inverse of `settings_as_dict`, also for values that were JSON in between; unknown names are errors."""
    annotations = _annotations(owner)
    known = [field.name for field in fields(owner)]  # type: ignore[arg-type]
    for name in values:
        check_choice(f"field of {owner.__name__}", name, known)
    converted = {
        name: tuple(value) if isinstance(value, list) and get_origin(annotations[name]) is tuple else value
        for name, value in values.items()
    }
    return owner(**converted)


def _is_float(annotation: Any) -> bool:
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return float in choices and int not in choices


def find_schema_error(value: Any, declared: Any, location: str = "", *, complete: bool = True) -> str | None:
    """What does not fit, in words, or None. With `complete=False`, keys may be missing."""
    if declared is Any:
        return None
    if is_typeddict(declared):
        return _find_in_object(value, declared, location, complete)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (NotRequired, Required):
        return find_schema_error(value, arguments[0], location, complete=complete)
    if origin in (Union, UnionType):
        faults = [find_schema_error(value, choice, location, complete=complete) for choice in arguments]
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
    faults = (find_schema_error(*location, complete=complete) for location in located)
    return next((fault for fault in faults if fault is not None), None)


def _join(location: str, key: Any) -> str:
    return f"{location}.{key}" if location else str(key)


def _say(location: str, value: Any, expected: str) -> str:
    text = repr(value)
    shown = text if len(text) <= 40 else f"{text[:30]}…"
    return f"{location or 'it'} is {shown}: expected {expected}"
