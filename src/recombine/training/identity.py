"""The identity of a module that a user built: SHA-256 over everything that can change what it computes.

That is its parameters and plain attributes, and the code of every class and function that it reaches, in files or in notebook
cells: byte code, default values, closures, and the global variables that the code names. Installed packages count by name and
version. A module with anything else, such as a hook, an open file or code that reads environment variables, has no identity.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import re
import site
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recombine.training.directory import digest_tensors
from recombine.training.session import hash_source

ENVIRONMENT_NAMES = {"environ", "environb", "getenv"}
OPAQUE_BUILTINS = {"open", "eval", "exec", "globals", "locals", "vars", "input", "__import__"}
NOT_CODE = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"}
GENERATED = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"} | {
    "__dataclass_fields__",
    "__dataclass_params__",
}  # by `dataclass`
PLAIN = (
    type(None),
    type(...),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    torch.dtype,
    torch.device,
    torch.Size,
    PurePath,
    re.Pattern,
)
WRAPPERS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset"),
    functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"),
}
HEAP_TYPE = 1 << 9  # flag of classes that are written in Python, whose instances have no hidden state


class UnidentifiedError(Exception):
    """The module reaches something that cannot be compared between two calls."""


def identify_module(model: nn.Module) -> str:
    """The identity of a module with its present parameters, as hexadecimal digits."""
    identity = _Identity()
    identity.add(model)
    return identity.digest.hexdigest()[:16]


class _Identity:
    """Adds values to a digest, every object once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.numbers: dict[int, int] = {}
        self.objects: list[object] = []  # alive, so that no id occurs twice

    def say(self, *words: object) -> None:
        self.digest.update(("\0".join(map(str, words)) + "\1").encode(errors="surrogatepass"))

    def add(self, value: Any) -> None:
        kind = type(value)
        if isinstance(value, PLAIN):
            self.say(kind.__name__, repr(value))
            return
        self.say(kind.__module__, kind.__qualname__)
        if id(value) in self.numbers:
            self.say("seen", self.numbers[id(value)])
            return
        self.numbers[id(value)] = len(self.numbers)
        self.objects.append(value)
        if isinstance(value, Tensor):
            self.add_tensor(value)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            self.say(value.dtype, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest())
        elif kind in (dict, OrderedDict):
            self.add_items(value)
        elif kind in (list, tuple):
            self.add_items(dict(enumerate(value)))
        elif kind in (set, frozenset) and all(isinstance(item, PLAIN) for item in value):
            self.say(*sorted(map(repr, value)))
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, FunctionType):
            self.add_function(value)
        elif isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            self.add_installed(owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__)
            self.say(value.__qualname__)
            if not isinstance(owner, ModuleType):
                self.add(owner)
        elif kind in WRAPPERS:
            self.add_items({name: getattr(value, name) for name in WRAPPERS[kind]})
        elif isinstance(value, ModuleType):
            self.add_installed(value.__name__)
        elif isinstance(value, MemberDescriptorType | GetSetDescriptorType):
            self.say(value.__name__)
        else:
            self.add_instance(value)

    def add_items(self, items: Mapping[Any, Any]) -> None:
        self.say(len(items))
        for key, item in items.items():
            self.add(key)
            self.add(item)

    def add_tensor(self, tensor: Tensor) -> None:
        hooks = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
        if any(hooks):
            raise UnidentifiedError("it has hooks")
        if type(tensor) not in (Tensor, nn.Parameter):
            raise UnidentifiedError(f"it has a {type(tensor).__qualname__}")
        self.say(tensor.requires_grad, digest_tensors({"": tensor}))

    def add_instance(self, value: Any) -> None:
        """An object by its class and attributes, if these are all that it has."""
        owner = type(value)
        if not isinstance(value, nn.Module | Enum) and any(
            not base.__flags__ & HEAP_TYPE for base in owner.__mro__ if base is not object
        ):
            raise UnidentifiedError(f"it reaches a {owner.__module__}.{owner.__qualname__}")
        self.add_class(owner)
        if is_dataclass(value):  # without cached properties
            self.add_items({field.name: getattr(value, field.name, None) for field in fields(value)})
            return
        attributes = dict(getattr(value, "__dict__", {}))
        if any(name.endswith("hooks") and item for name, item in attributes.items()):
            raise UnidentifiedError("it has hooks")
        if any(vars(base).get("__slots__") for base in owner.__mro__):
            raise UnidentifiedError(f"it reaches a {owner.__qualname__}, which has slots")
        self.add_items(attributes)

    def add_class(self, owner: type) -> None:
        for base in owner.__mro__:
            self.say(base.__module__, base.__qualname__)
            if _find_version(base.__module__) is not None:
                self.add_installed(base.__module__)
                forward = vars(base).get("forward")  # which a user may have replaced
                if isinstance(forward, FunctionType):
                    self.add(forward)
                continue
            for name, item in vars(base).items():
                generated = "__dataclass_fields__" in vars(base) and name in GENERATED
                if name not in NOT_CODE and not generated:
                    self.say(name)
                    self.add(item)

    def add_function(self, function: FunctionType) -> None:
        self.say(function.__qualname__)
        for cell in function.__closure__ or ():
            if not _is_empty(cell):
                self.add(cell.cell_contents)
        if _find_version(function.__module__) is not None:
            self.add_installed(function.__module__)
            return
        self.add_items({"defaults": function.__defaults__, "keywords": function.__kwdefaults__, **vars(function)})
        self.add_code(function.__code__, function.__globals__)

    def add_code(self, code: CodeType, variables: Mapping[str, Any]) -> None:
        """Byte code with its constants and the global variables that it names; of a module, the attributes that it names."""
        self.say(code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_argcount)
        if ENVIRONMENT_NAMES & set(code.co_names):
            raise UnidentifiedError(f"{code.co_name} reads environment variables")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.add_code(constant, variables)
            else:
                self.add(constant)
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname == "IMPORT_NAME":
                self.add_installed(name)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in variables:
                self.say(name)
                self.add_global(variables[name], code.co_names)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in OPAQUE_BUILTINS:
                raise UnidentifiedError(f"{code.co_name} calls {name}")

    def add_global(self, value: Any, names: tuple[str, ...]) -> None:
        if not isinstance(value, ModuleType) or _find_version(value.__name__) is not None or value is builtins:
            self.add(value)
            return
        for name in names:
            if name in vars(value):
                self.say(name)
                self.add_global(vars(value)[name], names)

    def add_installed(self, module: str) -> None:
        version = _find_version(module)
        if version is None:
            raise UnidentifiedError(f"it reaches {module}, which is not an installed package")
        self.say(module, version)


def _is_empty(cell: CellType) -> bool:
    """Whether the variable of a closure has no value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


@functools.cache
def _find_version(module: str | None) -> str | None:
    """The version of the installed package that has a module; None for code of the user."""
    top = (module or "").partition(".")[0]
    if top == "__main__":
        return None
    if top == "recombine":
        return hash_source()
    loaded = sys.modules.get(module or "")
    file = getattr(loaded, "__file__", None)
    if top in sys.builtin_module_names or (top in sys.stdlib_module_names and file is None):
        return sys.version
    if file is None:
        return None
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    if any(file.startswith(f"{folder}/") for folder in packages):
        names = _list_distributions().get(top, [])
        return " ".join(f"{name} {metadata.version(name)}" for name in sorted(set(names))) or None
    return sys.version if file.startswith(sysconfig.get_paths()["stdlib"]) else None


@functools.cache
def _list_distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
