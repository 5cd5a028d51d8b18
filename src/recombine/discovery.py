"""Classes of a package by their base class: a new file in its folder is found, and nothing else needs to know it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any


def find_classes(package: str, path: Iterable[str], base: Any) -> list[Any]:
    """Every subclass of `base` that a module of the package defines and that can be created, in the order of the modules."""
    modules = [importlib.import_module(module.name) for module in pkgutil.walk_packages(path, f"{package}.")]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
