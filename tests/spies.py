"""Functions that remember how they were called."""

from collections.abc import Callable
from typing import Any


def record_calls(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    """The same function; the positional arguments of each call are appended to `calls`."""

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **options)

    return call
