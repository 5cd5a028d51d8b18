"""Model configurations: the base class, models by name, and how one is built for a task.

A configuration is a frozen dataclass that builds a model for a task. It lists what its model requires of a task (`needs`);
`build_model` raises an error if the task lacks it. A model names the sites that probes read in `probe_sites`, a tuple of
`Site`. In a model without them, probes read its children.

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

import dataclasses
import hashlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from recombine.foundation.errors import InputError, Settings, check_choice, format_count, require_memory
from recombine.foundation.imports import describe_imports
from recombine.foundation.plugins import find_entry_points, is_loaded_file, load_object
from recombine.tasks.base import Task, find_classes
from recombine.tasks.families import TASKS

# Code from outside the package: a specification (see above), a class, or a function that builds a module.
Code = str | type | Callable[[Task], nn.Module]
GROUPS = {"task": "recombine.tasks", "model": "recombine.models"}

Config = TypeVar("Config", bound="ModelConfig")

BYTES_PER_NUMBER = 4
MAX_LAYERS = 3_000  # more take minutes to build and to save


class Need(NamedTuple):
    """A requirement of a model on a task, and the error message for a task that does not meet it."""

    is_met: Callable[[Task], bool]
    lack: str  # may name properties of the task, as in "{task.sequence_length}"
    expected: str


ENCODING = Need(
    lambda task: task.encoding_dim > 0,
    "does not encode the task in its inputs",
    "whose inputs begin with an encoding, such as 'hyperteacher'",
)
ISOLATED_QUERIES = Need(
    lambda task: task.isolated_queries,
    "lets queries attend to one another",
    "with isolated queries, such as 'in_context'",
)
MODULES = Need(
    lambda task: task.num_modules is not None, "does not define its number of modules", "that does, or a code_dim"
)
SAME_LENGTHS = Need(
    lambda task: task.train_length == task.sequence_length,
    "has {task.train_length} tokens in training and {task.sequence_length} in evaluation",
    "with as many in both, because the model has positions",
)
HIDDEN_ANSWERS = Need(
    lambda task: not task.requires_causal_model,
    "reveals earlier answers in later inputs",
    "that does not, or a model with causal=True",
)
TOKENS = Need(
    lambda task: task.vocabulary_size is not None,
    "has inputs of {task.input_dim} features",
    "whose inputs are numbers of tokens, such as 'language'",
)
FEATURES = Need(
    lambda task: task.vocabulary_size is None,
    "has token numbers as inputs",
    "whose inputs are features, or the model 'language_model'",
)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings, ABC):
    """Sizes and choices of a model; the task gives the sizes of its inputs and predictions."""

    kind: ClassVar[str]
    # Raise it when the same sizes and seed give different initial parameters or another function than before.
    version: ClassVar[int] = 1

    @property
    def label(self) -> str:
        """What distinguishes this model from others on the same task; part of the name of its run."""
        return self.kind

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the model requires of a task, in addition to inputs and predictions of some size."""
        return ()

    def check_task(self, task: Task) -> None:
        """Raise an error if the task lacks something the model requires."""
        for need in (*(() if TOKENS in self.needs else (FEATURES,)), *self.needs):
            if not need.is_met(task):
                lack = need.lack.format(task=task)
                raise InputError(
                    f"model {self.kind!r} does not fit task {task.name!r}, which {lack}: expected a task {need.expected}"
                )

    @abstractmethod
    def build(self, task: Task) -> nn.Module:
        """The model with its initial parameters, from inputs of the task to predictions."""


class Site(NamedTuple):
    """A site that probes read: the output, or the input, of the submodule at `path`."""

    name: str
    path: str
    side: Literal["output", "input"] = "output"
    token: Literal["last", "mean"] = "last"  # the last, or the mean over all


@dataclass(frozen=True, kw_only=True)
class OutsideModule(ModelConfig):
    """A module that a user built and trained with `recombine.benchmark`: its class is known, its constructor is not.

    A run directory records these fields; `bind_module` adds the function that builds it.
    """

    kind: ClassVar[str] = "outside_module"

    name: str
    """Name of the module's class."""
    fingerprint: str
    """Hash of its source, its structure and its initial parameters."""

    @property
    def label(self) -> str:
        return self.name

    def build(self, task: Task) -> nn.Module:
        raise InputError(
            f"model {self.name!r} was built outside this package: name a function of the task that builds it, "
            "with --code FILE.py:FUNCTION or code=[function]"
        )


@cache
def models_by_kind() -> dict[str, type[ModelConfig]]:
    """The package's own model configurations."""
    found = find_classes("recombine.models", [str(Path(__file__).parent)], ModelConfig, "kind")
    return {kind: config for kind, config in found.items() if config is not OutsideModule}


def build_model(config: ModelConfig, task: Task, *, seed: int, copies: int = 1) -> nn.Module:
    """Build the model of a configuration for a task. The same seed gives the same initial parameters on every device.

    Raises an error if so many copies of the parameters exceed the memory (training needs four: parameters, gradients and two
    moments).
    """
    with torch.random.fork_rng(devices=()):
        config.check_task(task)
        check_size(config, task, copies=copies)
        torch.manual_seed(seed)
        return config.build(task)


def check_size(config: ModelConfig, task: Task, *, copies: int = 1) -> None:
    """Raise an error if a model of this package is too deep or too large, before memory is allocated.

    Its size is that of the same model on torch's `meta` device, where tensors have shapes and no content. Models from outside
    the package are not checked, since they may not be able to build themselves there.
    """
    if not type(config).__module__.startswith("recombine.models."):
        return
    depth: int = getattr(config, "num_layers", 0)
    if depth > MAX_LAYERS:
        raise InputError(f"num_layers is {depth:,}: expected at most {MAX_LAYERS:,}")
    task = dataclasses.replace(task)  # a copy, because tensors that it caches here have no content
    try:
        with torch.device("meta"):
            model = config.build(task)
    except (RuntimeError, OverflowError) as error:  # more than torch can count
        raise InputError(
            f"a {config.kind} of these sizes cannot be built ({str(error).splitlines()[0]}): expected smaller sizes"
        ) from None
    size = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    what = f"a {config.kind} with {format_count(size)} parameters" + (", with gradients and moments," * (copies > 1))
    require_memory(BYTES_PER_NUMBER * copies * size, what)


def find_task(name: str) -> type[Task]:
    """The task class with a name, or the one that a file or module holds."""
    return check_task(_find(name, "task", TASKS, GROUPS["task"]))


def find_model(name: str) -> type[ModelConfig]:
    """The configuration class of the model with a name, or of the one that a file or module holds."""
    return check_model(_find(name, "model", models_by_kind(), GROUPS["model"]))


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
        _check_outside(candidate, "kind", models_by_kind())
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
    return _find(name, "code", {}, *GROUPS.values())


def bind_module(factory: Any) -> type[OutsideModule]:
    """The configuration of a module from `benchmark`, with the function of the task that builds it."""
    if not _is_factory(factory):
        raise InputError(
            f"{_name_of(factory)} does not build a module: expected a function of the task that returns one, or its class"
        )

    return _bind(factory, "OutsideModule", OutsideModule, {"__module__": OutsideModule.__module__})


def is_own(owner: Any) -> bool:
    """Whether a class or function belongs to this package."""
    return _unwrap_factory(owner).__module__.split(".")[0] == "recombine"


def describe_origin(owner: Any) -> str | None:
    """A specification of a class or function from outside, as `--code` takes it; None for the package's own."""
    if is_own(owner):
        return None
    written = _unwrap_factory(owner)
    module = sys.modules.get(written.__module__)
    file = getattr(module, "__file__", None)
    by_file = file is not None and (written.__module__ == "__main__" or is_loaded_file(written.__module__))
    return f"{file if by_file else written.__module__}:{written.__qualname__}"


def version_of(owner: type[Task] | type[ModelConfig]) -> int | str:
    """The version of a class, part of the identity of every run.

    The package's own classes carry a number that is raised by hand. For a class from outside, the hash of the files of the
    class and its bases is added, with that of the local modules they import and the environment variables they read, so that
    results from before a change are not mistaken for those after it.
    """
    if is_own(owner):
        return owner.version
    return f"{owner.version}-{hash_files(_unwrap_factory(owner))}"


def hash_files(owner: Any) -> str:
    """A hash of the files that define a class from outside and its bases from outside, or a function, and of their imports."""
    bases = [base for base in getattr(owner, "__mro__", ()) if not is_own(base) and _is_extension(base)]
    digest = hashlib.sha256()
    for source in bases or [owner]:
        try:
            file = Path(inspect.getfile(source))
            digest.update(file.read_bytes())
            digest.update("".join(f"\0{line}" for line in describe_imports(file)).encode())
        except (OSError, TypeError):  # a class made in a console or notebook has no file
            digest.update(source.__qualname__.encode())
    return digest.hexdigest()[:12]


def _is_extension(base: type) -> bool:
    known = (Task, ModelConfig, nn.Module)
    return issubclass(base, known) and base.__module__.split(".")[0] != "torch"


def _find(name: str, kind: str, own: Mapping[str, type], *groups: str) -> Any:
    if ":" in name:
        return load_object(name)
    plain = name.replace("-", "_")
    if plain in own:
        return own[plain]
    entries = [entry for group in groups for entry in find_entry_points(group).values()]
    installed = {entry.name.replace("-", "_"): entry for entry in entries}
    choices = [known.replace("_", "-") for known in (*own, *installed)]
    check_choice(kind, name.replace("_", "-"), (*choices, "FILE.py:NAME", "package.module:NAME"))
    return installed[plain].load()


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
    name = _name_of(factory)
    more = {"kind": name, "__module__": factory.__module__, "factory": staticmethod(factory)}
    config = _bind(factory, f"{name}Config", ModelConfig, more)  # type: ignore[type-abstract]
    _check_outside(config, "kind", models_by_kind())
    return config


def _bind(
    factory: Callable[[Task], nn.Module], name: str, base: type[Config], attributes: dict[str, Any]
) -> type[Config]:
    attributes["build"] = lambda self, task: _call(factory, task)
    return dataclass(frozen=True, kw_only=True)(type(name, (base,), attributes))


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


def _unwrap_factory(owner: Any) -> Any:
    """The module class or function behind a generated configuration class; otherwise the class itself."""
    factory = vars(owner).get("factory") if isinstance(owner, type) else None
    return owner if factory is None else factory.__func__


def _name_of(candidate: Any) -> str:
    if isinstance(candidate, nn.Module):
        return f"this {type(candidate).__name__}"
    return getattr(candidate, "__qualname__", repr(candidate))
