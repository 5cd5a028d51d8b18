"""Atomic files: whole or absent, also across a kill or a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from recombine.errors import InputError


def replace_file(path: Path, content: bytes) -> None:
    """Whole or not at all, also across a kill or a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """A file for the user, whole or not at all, in a folder made if it is missing."""
    try:
        if path.exists() and not path.is_file():
            raise IsADirectoryError(0, "it exists and is no file")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r} ({error.strerror}): expected a file in a writable folder"
        ) from None
