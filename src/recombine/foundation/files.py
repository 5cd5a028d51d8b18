"""Files: atomic writes, JSON that fits a schema, NumPy archives without pickles, and folders for data.

What a loaded file may do is decided here: it is a regular file of limited size, it holds data and never code, and an error in it
is one line. A file that is written is complete or absent, even if the process is killed or the power fails.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from recombine.foundation.errors import InputError, find_schema_error, require_memory


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
    """The content of a regular file that fits into memory."""
    require_regular(path)
    require_memory(path.stat().st_size, str(path))
    return path.read_bytes()


def require_regular(path: Path) -> None:
    """Refuse a pipe or a device in the place of a file: reading it might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_json(path: Path, schema: Any = dict[str, Any], *, complete: bool = True) -> Any:
    """The content of a JSON file; an `InputError` if it is missing, damaged or does not fit the schema."""
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: expected a file that Recombine wrote") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}): expected JSON") from None
    return parse_json(content, schema, str(path), complete=complete)


def read_json_lines(path: Path) -> dict[int, Any]:
    """The values of a file with one JSON value per line, by the number of the line; empty lines are left out."""
    try:
        lines = read_file(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise InputError(f"{path} cannot be read ({reason}): expected one JSON object per line") from None
    return {
        number: parse_json(line, Any, f"{path} line {number}") for number, line in enumerate(lines, 1) if line.strip()
    }


def parse_json(content: bytes | str, schema: Any, source: str, *, complete: bool = True) -> Any:
    """JSON that fits a schema, a type that msgspec knows (see `find_schema_error`); `source` is named in errors.

    With `Any` as the schema it may be from another program, and hold NaN and infinity, which Python's own module writes.
    """
    try:
        value = json.loads(content) if schema is Any else msgspec.json.decode(content)
        fault = find_schema_error(value, schema, complete=complete)
    except RecursionError:
        raise InputError(f"{source} cannot be read (it is nested too deeply): expected JSON") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(f"{source} cannot be read ({str(error).splitlines()[0]}): expected JSON") from None
    if fault is not None:
        raise InputError(f"{source} is damaged: {fault}")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically. NaN and infinity, which JSON does not have, are errors."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InputError(f"{path} would hold NaN or infinity: expected finite numbers") from None
    replace_file(path, f"{text}\n".encode())


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
    """A folder for data that can be made again, in `RECOMBINE_CACHE` or `~/.cache/recombine`; created if missing."""
    try:
        folder = (chosen_cache() or Path.home() / ".cache" / "recombine").joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(0, f"{str(folder)!r} is read-only")
    except (OSError, RuntimeError) as error:  # no home at all is a RuntimeError
        reason = str(error).rstrip(".")
        raise InputError(
            f"there is no folder for data ({reason}): expected a writable one in RECOMBINE_CACHE"
        ) from None
    return folder


def is_private(path: Path) -> bool:
    """Whether a file or folder, and a link that leads to it, is the user's or root's, and nobody else may write to it."""
    if not hasattr(os, "getuid"):
        return True  # Windows: the user's profile is protected by other means
    what = path.stat()
    return {what.st_uid, path.lstat().st_uid} <= {os.getuid(), 0} and not what.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; never Python objects."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            require_memory(sum(member.file_size for member in archive.infolist()), f"{path}, unpacked,")
            if any(
                not member.filename.endswith(".npy") for member in archive.infolist()
            ):  # NumPy would return its bytes
                raise ValueError("it has a member that is not an array")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: expected an npz file") from None
    except InputError:
        raise
    except Exception as error:  # NumPy raises many kinds for a damaged file
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read ({reason}): expected an npz file without Python objects") from None


RESULT = "result.json"  # in a run directory that is finished
METRICS = "metrics.jsonl"  # in a run directory, written during training
FAILURE = "failure.json"  # in a run directory whose training failed in a sweep
RUNNING = ".running"  # folder next to the run directories; workers touch a file in it for each run that they train
