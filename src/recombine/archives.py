"""NumPy archives (`.npz`) that others may have made: never pickles, and no memory before the sizes are known to be true.

The header of an array says how large it is. A file of a few bytes can claim terabytes, and a compressed one can hold them.
So each header is compared with the length of its member, and the sum with the memory of the machine, before anything is
read.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from recombine.errors import InputError
from recombine.files import require_regular
from recombine.memory import require_memory

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
