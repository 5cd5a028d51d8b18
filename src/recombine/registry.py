"""Task and model classes by name: the package's own, those of installed packages, and those of any file or module.

    fuzzy_logic                 one of the package's own
    my_task                     from an installed package, by the entry-point groups `recombine.tasks` and `recombine.models`
    path/to/file.py:MyTask      a class in a file
    package.module:MyTask       a class in an importable module

A class from outside is looked up only when the user names it, on the command line or in a call. A run directory records
where its classes came from, but nothing is ever imported because a file says so.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from recombine.errors import InputError, check_choice
from recombine.models import MODELS, ModelConfig
from recombine.tasks import TASKS, Task

Class = TypeVar("Class", bound=type)
Code = str | type  # how a user names a class from outside: a specification, or the class itself


def find_task(name: str) -> type[Task]:
    """The task class that a name, a file or a module gives."""
    return check_task(_find(name, "task", TASKS))


def find_model(name: str) -> type[ModelConfig]:
    """The configuration class of a model that a name, a file or a module gives."""
    return check_model(_find(name, "model", MODELS))


def check_task(found: Any) -> type[Task]:
    """Refuse what is no task, or takes the name of one of the package's own."""
    if not (isinstance(found, type) and issubclass(found, Task) and not inspect.isabstract(found)):
        raise InputError(f"{_name_of(found)} is not a task: expected a subclass of recombine.Task with all its methods")
    _check_outside(found, "name", TASKS)
    return found


def check_model(found: Any) -> type[ModelConfig]:
    """A model configuration, or any module whose constructor takes the task and nothing else."""
    if isinstance(found, type) and issubclass(found, nn.Module):
        return _configure_module(found)
    if not (isinstance(found, type) and issubclass(found, ModelConfig) and not inspect.isabstract(found)):
        raise InputError(
            f"{_name_of(found)} is not a model: expected a subclass of recombine.ModelConfig, or a torch.nn.Module "
            "whose constructor takes the task"
        )
    _check_outside(found, "kind", MODELS)
    return found


def match_classes(
    code: Sequence[Code], config: Mapping[str, Any]
) -> tuple[type[Task] | None, type[ModelConfig] | None]:
    """Of the classes that the user names, those that a configuration asks for by name and kind."""
    task: type[Task] | None = None
    model: type[ModelConfig] | None = None
    for item in code:
        found = _load(item, "class") if isinstance(item, str) else item
        if isinstance(found, type) and issubclass(found, Task):
            if check_task(found).name == config["task"].get("name"):
                task = found
        else:
            candidate = check_model(found)
            model = candidate if candidate.kind == config["model"].get("kind") else model
    return task, model


def is_own(owner: type) -> bool:
    """Whether a class belongs to this package."""
    return _source_class(owner).__module__.split(".")[0] == "recombine"


def describe_origin(owner: type) -> str | None:
    """Where a class from outside came from; None for the package's own."""
    if is_own(owner):
        return None
    source = _source_class(owner)
    module = sys.modules.get(source.__module__)
    file = getattr(module, "__file__", None)
    return f"{file or source.__module__}:{source.__qualname__}"


def version_of(owner: type[Task] | type[ModelConfig]) -> int | str:
    """What tells the numbers of one version of a class from those of another.

    The package's own classes carry a number that is raised by hand. For a class from outside the hash of its file is
    added, so that an edit is never mistaken for the run before it.
    """
    if is_own(owner):
        return owner.version
    try:
        source = Path(inspect.getfile(_source_class(owner))).read_bytes()
    except (OSError, TypeError):  # a class made in a console or notebook has no file
        source = owner.__qualname__.encode()
    return f"{owner.version}-{hashlib.sha256(source).hexdigest()[:12]}"


def _find(name: str, kind: str, own: Mapping[str, type]) -> Any:
    if ":" in name:
        return _load(name, kind)
    plain = name.replace("-", "_")
    if plain in own:
        return own[plain]
    installed = {entry.name: entry for entry in metadata.entry_points(group=f"recombine.{kind}s")}
    check_choice(kind, plain, (*own, *installed, f"FILE.py:{kind.title()}"))
    return installed[plain].load()


def _load(specification: str, kind: str) -> Any:
    """The attribute that `file.py:Name` or `package.module:Name` names; runs that code."""
    place, _, name = specification.rpartition(":")
    if not place or not name:
        raise InputError(f"{kind} {specification!r}: expected FILE.py:NAME or package.module:NAME")
    module = _load_file(Path(place)) if place.endswith(".py") else _import_module(place, specification)
    if not hasattr(module, name):
        choices = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise InputError(
            f"{place} has no {name!r}: expected one of {', '.join(choices) or 'its classes, but it has none'}"
        )
    return getattr(module, name)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{str(path)!r} is not a file: expected Python source")
    path = path.resolve()
    name = f"recombine_code_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
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
    """An exception in a user's file, with the line of that file it came from."""
    lines = [frame.lineno for frame in _frames(error) if frame.filename == str(path)]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    where = "" if line is None else f"line {line}: "
    return f"{where}{type(error).__name__}: {error}"


def _frames(error: Exception) -> Any:
    import traceback

    return traceback.extract_tb(error.__traceback__)


def _import_module(name: str, specification: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{specification!r} cannot be imported ({error}): expected package.module:NAME") from None


def _check_outside(found: Any, attribute: str, own: Mapping[str, type]) -> None:
    name = getattr(found, attribute, None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(
            f"{_name_of(found)}.{attribute} is {name!r}: expected a name of letters, digits and underscores"
        )
    if not is_dataclass(found):
        raise InputError(f"{_name_of(found)} is not a dataclass: expected @dataclass(frozen=True, kw_only=True)")
    if name in own and own[name] is not found:
        raise InputError(f"{_name_of(found)}.{attribute} is {name!r}, which the package has: expected another name")


def _configure_module(module: type[nn.Module]) -> type[ModelConfig]:
    """A configuration without fields for a module whose constructor takes the task."""

    def build(self: ModelConfig, task: Task) -> nn.Module:
        return module(task)

    name = module.__name__
    namespace = {"kind": name, "build": build, "__module__": module.__module__, "module_class": module}
    return dataclass(frozen=True, kw_only=True)(type(f"{name}Config", (ModelConfig,), namespace))


def _source_class(owner: type) -> type:
    """The class that a user wrote: the module, where its configuration was made here."""
    return vars(owner).get("module_class", owner)


def _name_of(found: Any) -> str:
    return getattr(found, "__qualname__", repr(found))
