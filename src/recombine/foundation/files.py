"""Atomic writes: a file is complete or absent, even if the process is killed or the power fails; reads that end.

NumPy archives (`.npz`) that others may have made: never pickles, and no memory before the sizes are known to be true.

The header of an array says how large it is. A file of a few bytes can claim terabytes, and a compressed one can hold them.
So each header is compared with the length of its member, and the sum with the memory of the machine, before anything is
read.

Names of files in a folder of runs that several parts read, also those that do without torch.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import pkgutil
import stat
import sys
import tempfile
import tokenize
import traceback
import zipfile
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib import format as npy

from recombine.foundation.errors import InputError, require_memory


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: it is either complete or unchanged, even if the process is killed or the power fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link that somebody put there would lead the content elsewhere
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        error.filename = str(path)  # the error of a full disk does not name the file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def read_file(path: Path) -> bytes:
    """The content of a regular file."""
    require_regular(path)
    return path.read_bytes()


def require_regular(path: Path) -> None:
    """Refuse a pipe or a device in the place of a file: reading it might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power failure, where the platform can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems do not sync directories
            raise
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that the user asked for; its folder is created if it is missing."""
    try:
        if path.exists() and not path.is_file():
            raise IsADirectoryError(0, "it exists and is not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r} ({error.strerror}): expected a file in a writable folder"
        ) from None


def chosen_cache() -> Path | None:
    """The folder that `RECOMBINE_CACHE` names, or None if it is not set."""
    chosen = os.environ.get("RECOMBINE_CACHE")
    try:
        return Path(chosen).expanduser() if chosen else None
    except RuntimeError as error:
        raise InputError(f"RECOMBINE_CACHE is {chosen!r}: expected a folder ({str(error).rstrip('.')})") from None


def data_folder(*names: str) -> Path:
    """A folder for data that can be made again: in `RECOMBINE_CACHE` or `~/.cache/recombine`, else among temporary files."""
    chosen = chosen_cache()
    try:
        home = Path.home() / ".cache" / "recombine" if chosen is None else chosen
        folder = home.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        raise PermissionError(0, "it is read-only")
    except RuntimeError:  # no home at all
        pass
    except OSError as error:
        if chosen is not None:
            raise InputError(
                f"cannot write to {str(folder)!r} ({error.strerror}): expected a writable folder in RECOMBINE_CACHE"
            ) from None
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    private = Path(tempfile.gettempdir(), f"recombine-data-{user}")
    private.mkdir(exist_ok=True, mode=0o700)
    if not is_private(private):  # somebody else could put data there
        raise InputError(
            f"{str(private)!r} belongs to somebody else or others can write to it: expected a folder of your own in "
            "RECOMBINE_CACHE"
        )
    folder = private.joinpath(*names)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def is_private(path: Path, owners: Collection[int] | None = None) -> bool:
    """Whether a file or folder is the user's or root's (or that of `owners`), and nobody else may write to it.

    So must be a link that leads to it.
    """
    if not hasattr(os, "getuid"):
        return True  # Windows: the user's profile is protected by other means
    what = path.stat()
    trusted = (os.getuid(), 0) if owners is None else owners
    return {what.st_uid, path.lstat().st_uid} <= set(trusted) and not what.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
UNREADABLE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, SyntaxError, TypeError)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name."""
    try:
        require_regular(path)
        with open(path, "rb") as file:
            if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise InputError(f"{path} holds one array: expected an npz file of several")
        _check_headers(path)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: expected an npz file") from None
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, tokenize.TokenError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read ({reason}): expected an npz file without Python objects") from None


def _check_headers(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        require_memory(sum(member.file_size for member in members), f"{path}, unpacked,")
        for member in members:
            if not member.filename.endswith(".npy"):  # NumPy would give its bytes instead of an array
                raise ValueError(f"{member.filename!r} is not an array")
            with archive.open(member) as content:
                _check_header(path, member, content)


def _check_header(path: Path, member: zipfile.ZipInfo, content: Any) -> None:
    read_header = HEADERS.get(npy.read_magic(content))
    if read_header is None:
        raise ValueError(f"{member.filename} has an unknown version")
    shape, _, dtype = read_header(content)
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects")
    if not dtype.itemsize:  # nothing would follow, however large it claims to be
        raise ValueError(f"{member.filename} has values of 0 bytes")
    claimed = math.prod(shape) * dtype.itemsize
    stored = member.file_size - content.tell()
    if claimed != stored or min(shape, default=0) < 0:
        raise InputError(
            f"{path} is damaged: the header of {member.filename} claims {claimed} bytes, expected the {stored} that follow it"
        )


RESULT = "result.json"  # in a run directory that is finished
METRICS = "metrics.jsonl"  # in a run directory, written during training
FAILURE = "failure.json"  # in a run directory whose training failed in a sweep
RUNNING = ".running"  # folder next to the run directories; workers touch a file in it for each run that they train

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


def find_classes(package: str, path: Iterable[str], base: Any, name: str) -> dict[str, Any]:
    """Every concrete subclass of `base` in the modules of a package, by its attribute `name`, in the order of the modules."""
    modules = [importlib.import_module(module.name) for module in pkgutil.walk_packages(path, f"{package}.")]
    return {
        getattr(value, name): value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    }
