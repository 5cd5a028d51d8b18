"""Atomic writes: a file is complete or absent, even if the process is killed or the power fails; reads that end."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path

from recombine.errors import InputError


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
