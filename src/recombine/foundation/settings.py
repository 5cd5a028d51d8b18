"""Settings that are checked: a dataclass whose values must have the types that its fields declare.

Python does not check annotations, so `FuzzyLogic(num_examples=16.5)` or a string read from a file would otherwise be noticed
late, or never. The check runs before `__init__`, so subclasses need not call anything.

Whether a JSON value has the type that is declared for it, so that readers of a file can rely on its types.

Files may be cut short, edited, or made by someone else. Missing keys and values of the wrong type are named where a file
is read, not met later as an exception somewhere else. Keys that are not declared are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import cache
from types import NoneType, UnionType
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

from recombine.foundation.errors import InputError, check_choice

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
