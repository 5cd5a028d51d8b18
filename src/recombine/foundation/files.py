"""Files: atomic writes, JSON that fits a schema and belongs to its run, NumPy archives without pickles, folders for data.

What a loaded file may do is decided here: it is a regular file of limited size, it holds data and never code, and an error in it
is one line. A file that is written is complete or absent, even if the process is killed or the power fails.

JSON that belongs to somebody, such as a run, ends with a key `digest`: the owner, and SHA-256 of the owner and of all that
stands before the key. A file that was edited, or copied from another owner, is therefore refused. Files from versions without
digests have no such key and are read without this check.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import socket
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from recombine.foundation.errors import InputError, find_schema_error, format_bytes, require_memory

MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
ABANDONED_SECONDS = 86_400  # after which a temporary file of another machine counts as abandoned


def name_process() -> str:
    """A part of the names of temporary files, by which `remove_abandoned` tells whose they are."""
    return f"{MACHINE}-{os.getpid()}"


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove the temporary files of processes that are dead, such as those that were killed while they wrote."""
    for path in folder.glob(pattern):
        named = re.search(r"([0-9a-f]{8})-(\d+)", path.name)
        with contextlib.suppress(OSError):
            if named is not None and named[1] == MACHINE and os.name == "posix":
                abandoned = not _is_alive(int(named[2]))
            else:
                abandoned = time.time() - path.lstat().st_mtime > ABANDONED_SECONDS
            if abandoned:
                path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def temporary_path(path: Path) -> Path:
    """A hidden name for what will replace a file, free to be created; what killed processes left there is removed."""
    remove_abandoned(path.parent, f".{glob.escape(path.name)}.*.tmp")
    temporary = path.with_name(f".{path.name}.{name_process()}.tmp")
    temporary.unlink(missing_ok=True)  # a link that somebody put there would lead the content elsewhere
    return temporary


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: it is either complete or unchanged, even if the process is killed or the power fails."""
    temporary = path
    try:
        temporary = temporary_path(path)
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
        if temporary != path:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def open_file(path: Path, mode: str = "rb") -> Iterator[IO[bytes]]:
    """Open a regular file, to write only if it is not a link. Errors name it, also those of a broken or full disk."""
    flag = 0 if mode == "rb" else getattr(os, "O_NOFOLLOW", 0)
    try:
        if mode != "ab":
            require_regular(path)
        with open(path, mode, opener=lambda name, flags: os.open(name, flags | flag, 0o666)) as file:
            yield file
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def read_file(path: Path) -> bytes:
    """The content of a regular file that fits into memory."""
    with open_file(path) as file:
        require_memory(os.fstat(file.fileno()).st_size, str(path))
        return file.read()


def require_regular(path: Path) -> None:
    """Refuse a pipe or a device in the place of a file: reading it might never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_json(path: Path, schema: Any = dict[str, Any], *, complete: bool = True, owner: str | None = None) -> Any:
    """The content of a JSON file; an `InputError` if it is missing, damaged, another owner's or does not fit the schema."""
    return parse_json(read_stored(path), schema, str(path), complete=complete, owner=owner)


def read_stored(path: Path) -> bytes:
    """The bytes of a file that Recombine wrote; an `InputError` if it is missing or cannot be read."""
    try:
        return read_file(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: expected a file that Recombine wrote") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): expected JSON") from None


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


def parse_json(
    content: bytes | str, schema: Any, source: str, *, complete: bool = True, owner: str | None = None
) -> Any:
    """JSON that fits a schema, a type that msgspec knows (see `find_schema_error`); `source` is named in errors.

    With an owner, the digest is compared and left out. With `Any` as the schema the JSON may be from another program, and hold
    NaN and infinity, which Python's own module writes.
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
    if owner is not None and value.pop("digest", None) is not None:
        check_digest(content.encode() if isinstance(content, str) else content, owner, source)
    return value


DIGEST = re.compile(rb',?\s*"digest": "([^"]*)"\s*}\s*\Z')  # the last key of an object
MAX_DIGEST_BYTES = 200  # of that key and what surrounds it


def add_digest(text: str, owner: str) -> str:
    """The JSON of an object with the key `digest` at its end."""
    body = text.rstrip().removesuffix("}").rstrip()
    before, after = ("\n  ", "\n}") if "\n" in body else (" ", "}")
    comma = "" if body.endswith("{") else ","
    return f'{body}{comma}{before}"digest": "{owner}-{_hash(body.encode(), owner)}"{after}'


def check_digest(content: bytes, owner: str, source: str) -> None:
    """Raise an error if an object has the digest of another owner or of another content."""
    end = max(0, len(content) - MAX_DIGEST_BYTES)
    found = DIGEST.search(content[end:])
    if found is not None and found[1].decode(errors="replace").rpartition("-")[0] != owner:
        raise InputError(f"{source} belongs to another run: expected the one of the configuration next to it")
    if found is None or found[1] != f"{owner}-{_hash(content[: end + found.start()], owner)}".encode():
        raise InputError(f"{source} is damaged: its content does not match its digest")


def _hash(body: bytes, owner: str) -> str:
    return hashlib.sha256(owner.encode() + b"\0" + body).hexdigest()[:32]


def write_json(path: Path, value: Mapping[str, Any], *, owner: str | None = None) -> None:
    """Write a JSON file atomically, with a digest if it has an owner. NaN and infinity, which JSON does not have, are errors."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise InputError(f"{path} would hold NaN or infinity: expected finite numbers") from None
    replace_file(path, f"{text if owner is None else add_digest(text, owner)}\n".encode())


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


def write_output(path: Path, content: bytes) -> None:
    """Write a file that the user asked for, and create its folder if it is missing."""
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


MAX_UNPACKED, MAX_RATIO = 1 << 30, 50  # bytes that any file may unpack to, and more than that per byte of it


def require_unpacked(path: Path, num_bytes: int) -> None:
    """Refuse a small file that unpacks to gigabytes, and any that memory does not hold."""
    require_memory(num_bytes, f"{path}, unpacked,")
    if num_bytes > max(MAX_UNPACKED, MAX_RATIO * path.stat().st_size):
        raise InputError(f"{path} unpacks to {format_bytes(num_bytes)}: expected at most {MAX_RATIO} times its size")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive by name; never Python objects."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            require_unpacked(path, sum(member.file_size for member in archive.infolist()))
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
