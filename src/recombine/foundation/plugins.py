"""Code from outside the package: what a user names (`FILE.py:NAME`), and what installed packages register as entry points."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import tomllib
import traceback
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from recombine.foundation.errors import InputError

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
"""Of a checkout; an installed package has none there."""


def find_entry_points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, without importing them. Those of a checkout need not be installed."""
    found = {entry.name: entry for entry in metadata.entry_points(group=group)}
    if PROJECT.is_file():
        declared = tomllib.loads(PROJECT.read_text(encoding="utf-8")).get("project", {}).get("entry-points", {})
        found |= {name: EntryPoint(name, value, group) for name, value in declared.get(group, {}).items()}
    return found


def read_summary(entry: EntryPoint) -> str:
    """The first line of the docstring of an entry point's module, read from its file: importing it may take long."""
    package, *names = entry.module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    source = Path(spec.origin).parent.joinpath(*names).with_suffix(".py") if names else Path(spec.origin)
    return source.read_text(encoding="utf-8").partition('"""')[2].partition("\n")[0] if source.is_file() else ""


FILE_PREFIX = "recombine_code_"  # of the names that modules loaded from a file have in sys.modules


def load_object(specification: str) -> Any:
    """The class or function that a specification names."""
    source, _, name = specification.rpartition(":")
    if not source or not name:
        raise InputError(f"code {specification!r}: expected FILE.py:NAME or package.module:NAME")
    try:
        module = _load_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (ImportError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{specification!r} cannot be imported ({error}): expected package.module:NAME") from None
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
