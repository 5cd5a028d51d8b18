"""Models by name, and how one is built for a task.

Task and model classes by name: the package's own, those of installed packages, and those in any file or module.

    fuzzy_logic                 one of the package's own
    my_task                     from an installed package, by the entry-point groups `recombine.tasks` and `recombine.models`
    path/to/file.py:MyTask      a class in a file
    package.module:MyTask       a class in an importable module

A model may also be a `torch.nn.Module` whose constructor takes the task, or a function of the task that returns a module.

Code from outside runs only if the user names it, on the command line or in a call. A run directory records where its classes
came from, but nothing is ever imported because a file says so.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recombine.foundation.errors import InputError, check_choice
from recombine.foundation.files import find_classes, is_loaded_file, load_object
from recombine.models.base import ModelConfig, OutsideModule, check_size
from recombine.tasks.base import Task
from recombine.tasks.families import TASKS

MODELS: dict[str, type[ModelConfig]] = {
    config.kind: config
    for config in find_classes("recombine.models", [str(Path(__file__).parent)], ModelConfig)
    if config is not OutsideModule
}


def build_model(config: ModelConfig, task: Task, *, seed: int, copies: int = 1) -> nn.Module:
    """Build the model of a configuration for a task. The same seed gives the same initial parameters on every device.

    Raises an error if memory does not hold so many copies of the parameters (see `check_size`).
    """
    with torch.random.fork_rng(devices=()):
        config.check_task(task)
        check_size(config, task, copies=copies)
        torch.manual_seed(seed)
        return config.build(task)


# How a user names code from outside: a specification (see above), a class, or a function that builds a module.
Code = str | type | Callable[[Task], nn.Module]
GROUPS = {"task": "recombine.tasks", "model": "recombine.models"}


def find_task(name: str) -> type[Task]:
    """The task class with a name, or the one that a file or module holds."""
    return check_task(_find(name, "task", TASKS))


def find_model(name: str) -> type[ModelConfig]:
    """The configuration class of the model with a name, or of the one that a file or module holds."""
    return check_model(_find(name, "model", MODELS))


def check_task(candidate: Any) -> type[Task]:
    """Require a task class that does not use the name of one of the package's own."""
    if not (isinstance(candidate, type) and issubclass(candidate, Task)):
        raise InputError(f"{_name_of(candidate)} is not a task: expected a subclass of recombine.Task")
    if inspect.isabstract(candidate):
        missing = ", ".join(sorted(candidate.__abstractmethods__))
        raise InputError(f"{_name_of(candidate)} is not a complete task: expected definitions of {missing}")
    _check_outside(candidate, "name", TASKS)
    return candidate


def check_model(candidate: Any) -> type[ModelConfig]:
    """Require a model configuration; a module class or a function of the task gets one without fields."""
    if _is_config(candidate):
        _check_outside(candidate, "kind", MODELS)
        return candidate
    if _is_factory(candidate):
        return _configure_factory(candidate)
    raise InputError(
        f"{_name_of(candidate)} is not a model: expected a subclass of recombine.ModelConfig, a torch.nn.Module whose "
        "constructor takes the task, or a function of the task that returns a module"
    )


def match_classes(
    code: Sequence[Code], config: Mapping[str, Any]
) -> tuple[type[Task] | None, type[ModelConfig] | None]:
    """Of the code that the user names, the task and model classes that a configuration asks for by name and kind."""
    task: type[Task] | None = None
    model: type[ModelConfig] | None = None
    for item in code:
        candidate = find_code(item) if isinstance(item, str) else item
        if isinstance(candidate, type) and issubclass(candidate, Task):
            task = candidate if check_task(candidate).name == config["task"].get("name") else task
        elif config["model"].get("kind") == OutsideModule.kind and not _is_config(candidate):
            model = bind_module(candidate)
        else:
            model_class = check_model(candidate)
            model = model_class if model_class.kind == config["model"].get("kind") else model
    return task, model


def find_code(name: str) -> Any:
    """The task or model that a `--code` specification or the name of an entry point stands for."""
    if ":" in name:
        return load_object(name)
    installed = _installed(*GROUPS.values())
    check_choice("code", name.replace("-", "_"), (*installed, "FILE.py:NAME", "package.module:NAME"))
    return installed[name.replace("-", "_")].load()


def bind_module(factory: Any) -> type[OutsideModule]:
    """The configuration of a module from `benchmark`, with the function of the task that builds it."""
    if not _is_factory(factory):
        raise InputError(
            f"{_name_of(factory)} does not build a module: expected a function of the task that returns one, or its class"
        )

    def build(self: OutsideModule, task: Task) -> nn.Module:
        return _call(factory, task)

    namespace = {"build": build, "__module__": OutsideModule.__module__}
    return dataclass(frozen=True, kw_only=True)(type("OutsideModule", (OutsideModule,), namespace))


def is_own(owner: Any) -> bool:
    """Whether a class or function belongs to this package."""
    return _written_by_user(owner).__module__.split(".")[0] == "recombine"


def describe_origin(owner: Any) -> str | None:
    """A specification of a class or function from outside, as `--code` takes it; None for the package's own."""
    if is_own(owner):
        return None
    written = _written_by_user(owner)
    module = sys.modules.get(written.__module__)
    file = getattr(module, "__file__", None)
    by_file = file is not None and (written.__module__ == "__main__" or is_loaded_file(written.__module__))
    return f"{file if by_file else written.__module__}:{written.__qualname__}"


def version_of(owner: type[Task] | type[ModelConfig]) -> int | str:
    """What tells the numbers of one version of a class from those of another.

    The package's own classes carry a number that is raised by hand. For a class from outside, the hash of the files of the
    class and its bases is added, so that results from before an edit are not mistaken for those after it.
    """
    if is_own(owner):
        return owner.version
    return f"{owner.version}-{hash_files(_written_by_user(owner))}"


def hash_files(owner: Any) -> str:
    """A hash of the files that define a class from outside and its bases from outside, or a function."""
    bases = [base for base in getattr(owner, "__mro__", ()) if not is_own(base) and _is_extension(base)]
    digest = hashlib.sha256()
    for source in bases or [owner]:
        try:
            digest.update(Path(inspect.getfile(source)).read_bytes())
        except (OSError, TypeError):  # a class made in a console or notebook has no file
            digest.update(source.__qualname__.encode())
    return digest.hexdigest()[:12]


def _is_extension(base: type) -> bool:
    known = (Task, ModelConfig, nn.Module)
    return issubclass(base, known) and base.__module__.split(".")[0] != "torch"


def _find(name: str, kind: str, own: Mapping[str, type]) -> Any:
    if ":" in name:
        return load_object(name)
    plain = name.replace("-", "_")
    if plain in own:
        return own[plain]
    installed = _installed(GROUPS[kind])
    choices = [known.replace("_", "-") for known in (*own, *installed)]
    check_choice(kind, name.replace("_", "-"), (*choices, "FILE.py:CLASS"))
    return installed[plain].load()


def _installed(*groups: str) -> dict[str, metadata.EntryPoint]:
    """The entry points of installed packages, by name."""
    entries = [entry for group in groups for entry in metadata.entry_points(group=group)]
    return {entry.name.replace("-", "_"): entry for entry in entries}


def _check_outside(candidate: Any, attribute: str, own: Mapping[str, type]) -> None:
    name = getattr(candidate, attribute, None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(
            f"{_name_of(candidate)}.{attribute} is {name!r}: expected a name of letters, digits and underscores"
        )
    if not is_dataclass(candidate):
        raise InputError(f"{_name_of(candidate)} is not a dataclass: expected @dataclass(frozen=True, kw_only=True)")
    if name in own and own[name] is not candidate:
        raise InputError(
            f"{_name_of(candidate)}.{attribute} is {name!r}, which this package uses: expected another name"
        )


def _is_config(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, ModelConfig) and not inspect.isabstract(candidate)


def _is_factory(candidate: Any) -> bool:
    """Whether it is a module class, or a function."""
    if isinstance(candidate, type):
        return issubclass(candidate, nn.Module)
    return callable(candidate) and not isinstance(candidate, nn.Module)


@cache
def _configure_factory(factory: Callable[[Task], nn.Module]) -> type[ModelConfig]:
    def build(self: ModelConfig, task: Task) -> nn.Module:
        return _call(factory, task)

    name = _name_of(factory)
    namespace = {"kind": name, "build": build, "__module__": factory.__module__, "factory": staticmethod(factory)}
    config: type[ModelConfig] = dataclass(frozen=True, kw_only=True)(type(f"{name}Config", (ModelConfig,), namespace))
    _check_outside(config, "kind", MODELS)
    return config


def _call(factory: Callable[[Task], nn.Module], task: Task) -> nn.Module:
    try:
        inspect.signature(factory).bind(task)
    except TypeError as error:
        raise InputError(
            f"{_name_of(factory)} cannot be called with the task ({error}): expected one argument"
        ) from None
    module = factory(task)
    if not isinstance(module, nn.Module):
        raise InputError(f"{_name_of(factory)} returned {type(module).__name__}: expected a torch.nn.Module")
    return module


def _written_by_user(owner: Any) -> Any:
    """The module class or function that a configuration was made for here; otherwise the class itself."""
    factory = vars(owner).get("factory") if isinstance(owner, type) else None
    return owner if factory is None else factory.__func__


def _name_of(candidate: Any) -> str:
    if isinstance(candidate, nn.Module):
        return f"this {type(candidate).__name__}"
    return getattr(candidate, "__qualname__", repr(candidate))
