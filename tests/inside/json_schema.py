"""Compare a JSON value with the TypedDict that documents it: exactly the declared keys, with values of the declared types."""

import types
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict


def find_differences(value: Any, declared: Any, path: str = "") -> list[str]:
    """What is missing, not declared, or of another type."""
    if is_typeddict(declared):
        return _compare_keys(value, declared, path)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (NotRequired, Required):
        return find_differences(value, arguments[0], path)
    if origin in (Union, types.UnionType):
        found = [find_differences(value, choice, path) for choice in arguments]
        return [] if [] in found else min(found, key=len)
    if origin is Literal:
        return [] if value in arguments else [f"{path}: {value!r} is none of {arguments}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{path}: {value!r} is no list"]
        return [line for i, item in enumerate(value) for line in find_differences(item, arguments[0], f"{path}[{i}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{path}: {value!r} is no object"]
        keys = [line for key in value for line in find_differences(key, arguments[0], f"{path} key {key}")]
        return keys + [line for key in value for line in find_differences(value[key], arguments[1], f"{path}.{key}")]
    if declared is Any:
        return []
    expected = (int, float) if declared is float else declared
    return [] if isinstance(value, expected) else [f"{path}: {value!r} is no {declared.__name__}"]


def _compare_keys(value: Any, declared: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is no object"]
    hints = get_type_hints(declared, include_extras=True)
    # `__required_keys__` knows nothing of NotRequired where annotations are strings
    optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
    required = declared.__required_keys__ - optional
    missing = [f"{path}.{key} is missing" for key in sorted(required - value.keys())]
    unknown = [f"{path}.{key} is not declared" for key in sorted(value.keys() - hints.keys())]
    inside = [
        line for key in value if key in hints for line in find_differences(value[key], hints[key], f"{path}.{key}")
    ]
    return missing + unknown + inside
