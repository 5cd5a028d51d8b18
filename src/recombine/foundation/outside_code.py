"""Load an object that the user names as `path/to/file.py:NAME` or `package.module:NAME`. This runs that code.

Classes of a package by their base class: a new file in its folder is found, and nothing else needs to know it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from recombine.foundation.errors import InputError

FILE_PREFIX = "recombine_code_"  # of the names that modules loaded from a file have in sys.modules


def load_object(specification: str) -> Any:
    """The class or function that a specification names."""
    source, _, name = specification.rpartition(":")
    if not source or not name:
        raise InputError(f"code {specification!r}: expected FILE.py:NAME or package.module:NAME")
    module = _load_file(Path(source)) if source.endswith(".py") else _import_module(source, specification)
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is None:
        choices = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        expected = f"one of {', '.join(choices)}" if choices else "a class or a function, but none is defined there"
        raise InputError(f"{source} has no {name!r}: expected {expected}")
    return value


def is_loaded_file(module_name: str) -> bool:
    """Whether a module was loaded from a file here, so that its name cannot be imported."""
    return module_name.startswith(FILE_PREFIX)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{str(path)!r} is not a file: expected Python source")
    path = path.resolve()
    name = FILE_PREFIX + hashlib.sha256(str(path).encode()).hexdigest()[:12]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{path} cannot be loaded: {describe_error(error, path)}") from error
    return module


def describe_error(error: Exception, path: Path) -> str:
    """An exception in a user's file, with the line of the file that raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    where = "" if line is None else f"line {line}: "
    message = str(error).splitlines()[0] if str(error) else ""
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return f"{where}{kind}{message}"


def _import_module(name: str, specification: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise InputError(f"{specification!r} cannot be imported ({error}): expected package.module:NAME") from None


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
