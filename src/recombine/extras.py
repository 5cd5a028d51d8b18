"""Packages that only some users need, each in an extra of this package. A missing one is an error that names its extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from recombine.errors import InputError


def import_extra(package: str, *, extra: str, user: str, instead: str = "") -> ModuleType:
    """A package that may not be installed. `user` is what needs it, `instead` what to do without it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"{user} needs the package {package}: expected it to be installed (pip install 'recombine[{extra}]'){instead}"
        ) from None
