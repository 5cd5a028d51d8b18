"""Errors that a user can cause, in one line with the value, what was expected and the choices; and the checks that raise them.

Choices and numbers, optional packages, sizes that memory cannot hold, the types of settings, and the schemas of stored files.
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
from typing import Any, Literal, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

MANY_CHOICES = 12  # more are not listed in an error if some are similar to what was given
NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of Unicode: control, format, surrogates, ends of lines


class InputError(ValueError):
    """Invalid input; the command line prints the message as one line and exits with code 2."""


def escape_controls(text: str, keep: str = "") -> str:
    """Text whose control characters, line ends and marks of direction are written out, except `keep`.

    Everything that a file, a name or a model may contain goes through here on its way to a terminal, which it cannot command.
    """
    return "".join(
        sign.encode("unicode_escape").decode() if unicodedata.category(sign) in NOT_SHOWN and sign not in keep else sign
        for sign in text
    )


def check_choice(kind: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise raise an error that lists them, or of many the similar ones."""
    choices = tuple(map(str, choices))
    if value not in choices:
        close = difflib.get_close_matches(str(value).lower(), choices, n=3, cutoff=0.75)
        if close and len(choices) > MANY_CHOICES:
            raise InputError(f"unknown {kind} {value!r}: did you mean {' or '.join(close)}?")
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
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        require(is_count, name, value, "a whole number of at least 1")


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
    for power, unit in enumerate(UNITS):
        if num_bytes < 1000 ** (power + 1):
            return f"{num_bytes / 1000**power:.3g} {unit}"
    return f"more than 1,000 {UNITS[-1]}"


def format_count(count: int) -> str:
    """A whole number with separators; only the power of ten if it is astronomical."""
    if count < 10**18:
        return f"{count:,}"
    return f"more than 10^{int((count.bit_length() - 1) * 0.30103)}"


Owner = TypeVar("Owner")

# Types of a class by name; cached, because evaluating them takes most of the time of making a configuration.
_annotations: Callable[[Any], dict[str, Any]] = cache(get_type_hints)

PLAIN_TYPES = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    NoneType: "nothing",
}


class Settings:
    """Base class of tasks, model configurations and training configurations, whose values have the declared types."""

    def __new__(cls: type[Owner], *args: Any, **values: Any) -> Owner:
        annotations = _annotations(cls)
        for name, value in values.items():
            annotation = annotations.get(name)
            if get_origin(annotation) is Literal:
                check_choice(name, value, get_args(annotation))
            elif annotation is not None and not _fits(value, annotation):
                raise InputError(f"{name} is {value!r}: expected {_describe(annotation)}")
        return object.__new__(cls)


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value has a type without conversion, except of whole numbers to floats, and is finite."""
    try:
        return bool(msgspec.convert(value, annotation) == value) and not (
            isinstance(value, float) and math.isinf(value)
        )
    except msgspec.ValidationError:
        return False


def _describe(annotation: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(map(_describe, arguments))
    if origin is tuple and arguments[1:] == (...,):
        return f"several values, each {_describe(arguments[0])}"
    return PLAIN_TYPES.get(annotation, str(annotation))


def settings_as_dict(settings: Any) -> dict[str, Any]:
    """The values of a dataclass by name; a whole number for a float is written as a float, so that 1 and 1.0 are the same."""
    annotations = _annotations(type(settings))
    return {
        name: msgspec.convert(value, annotations[name]) if type(value) is int else value
        for name, value in asdict(settings).items()
    }


def without_defaults(owner: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the defaults of the fields of a dataclass."""
    defaults = {field.name: field.default for field in fields(owner)}
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


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


def find_schema_error(value: Any, schema: Any, *, complete: bool = True) -> str | None:
    """What does not fit a schema, in words, or None. With `complete=False`, keys of a `TypedDict` may be missing."""
    try:
        msgspec.convert(value, schema if complete else _partial(schema), str_keys=True)
    except msgspec.ValidationError as error:
        message, _, place = str(error).replace("`", "").partition(" - at $")
        place, missing = place.removeprefix("."), message.removeprefix("Object missing required field ")
        if missing != message:
            return f"{'.'.join(filter(None, (place, missing)))} is missing"
        return f"{place or 'it'}: {message[0].lower()}{message[1:]}"
    return None


@cache
def _partial(schema: Any) -> Any:
    return TypedDict("Partial", get_type_hints(schema), total=False) if is_typeddict(schema) else schema  # type: ignore[operator]
