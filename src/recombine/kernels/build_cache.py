"""Where compiled kernels are kept, and which of them are trusted.

The folder is `RECOMBINE_CACHE`, or `~/.cache/recombine`; where the home folder is missing or read-only, a folder of the
user's own among the temporary files. A build runs with the rights of whoever loads it. So folder and file must belong to the
user (or to root), and nobody else may be able to write to them; and the name of a file ends in the hash of its content.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from recombine.errors import InputError
from recombine.files import chosen_cache, is_private


def cache_directory() -> Path:
    """Where builds are kept; created if missing. It may be read-only: then it serves, but nothing can be added."""
    chosen = chosen_cache()
    if chosen is not None:
        return _open_directory(chosen)
    try:
        directory = _open_directory(Path.home() / ".cache" / "recombine")
        if is_writable(directory):
            return directory
    except (InputError, RuntimeError):  # no home at all is a RuntimeError
        pass
    return _open_directory(Path(tempfile.gettempdir()) / f"recombine-{_user()}")


def is_writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)


def load_if_intact(path: Path) -> ctypes.CDLL | None:
    """The library, if it is ours and whole; a damaged one is removed."""
    try:
        if not path.is_symlink() and path.is_file() and is_private(path, _trusted_users()):
            if path.stem.rsplit("-", 1)[-1] == digest([path.read_bytes()]):
                return ctypes.CDLL(str(path))
            path.unlink()
    except OSError:
        pass
    return None


def digest(parts: Iterable[bytes]) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(len(part).to_bytes(8, "little") + part)
    return content.hexdigest()[:16]


def _open_directory(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        private = is_private(directory, _trusted_users())
        readable = os.access(directory, os.R_OK | os.X_OK)
    except OSError as error:
        raise InputError(
            f"the folder for compiled kernels (RECOMBINE_CACHE) is {str(directory)!r}: expected a writable directory "
            f"({error.strerror})"
        ) from error
    if not private or not readable:
        what = directory.stat()
        raise InputError(
            f"the folder for compiled kernels (RECOMBINE_CACHE) is {str(directory)!r}, of user {what.st_uid} with mode "
            f"{stat.S_IMODE(what.st_mode):o}: expected one that belongs to you and that only you can write to (mode 700)"
        )
    return directory


def _trusted_users() -> set[int]:
    return {os.getuid(), 0} if hasattr(os, "getuid") else set()


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
