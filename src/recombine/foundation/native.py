"""C kernels, compiled on first use for this very machine and cached, and memory for what they compute.

A build is one file in the cache folder, `RECOMBINE_CACHE` or `~/.cache/recombine`:

    <name>-<hash of sources and CPU>-<hash of compiler and flags>-<hash of the file's own content>.so

The first two hashes say whether it fits, the last whether it is intact: a truncated or altered file is built again. It is
written under a temporary name and renamed, so processes that start together do not disturb each other. Without a compiler,
any intact build for these sources and this CPU is used, or one that came with a platform wheel (`make wheel-native`):

    recombine/built/<name>-<hash of all kernel sources>-<level of x86-64>[-serial].so

A build runs with the rights of whoever loads it. So folder and file must belong to the user (or to root), and nobody else may
be able to write to them.

OpenMP: gcc has its own runtime, libgomp. clang needs LLVM's, libomp, and often lacks it: Apple's clang even refuses `-fopenmp`,
but accepts `-Xclang -fopenmp` and the libomp inside torch. The runtime that torch has loaded comes first: a second one would
keep a second pool of threads spinning, and two of LLVM's end the process. Without OpenMP, a build has one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import math
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.foundation.files import chosen_cache, is_private

PACKAGE = Path(__file__).parent.parent
INCLUDE = PACKAGE / "attention" / "cpu"
"""Headers that kernels of other rooms include too."""
PREBUILT = PACKAGE / "built"
_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
LEVELS = {  # CPU features of each level, the highest level first
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
}
COMPILERS = ("cc", "gcc", "clang")
# contraction to fused multiply-adds is exact enough; -ffast-math is not used: NaN in must be NaN out
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
SHARED = ("-shared", "-fPIC")
COMPILE_TIMEOUT = 600.0
"""Seconds after which a compiler is killed; the largest kernel takes about 20."""
VERSION_TIMEOUT = 60.0

_log = logging.getLogger(__name__)


class CompilerError(RuntimeError):
    """The kernel cannot be built or loaded here; the message says why."""


def open_kernel(source: Path, functions: Mapping[str, Sequence[Any]]) -> ctypes.CDLL | str:
    """The compiled `source`, or why there is none, in one line. `functions`: the types of their arguments."""
    try:
        library = load_library(source)
    except (CompilerError, InputError, OSError) as error:
        return str(error)
    for function, arguments in functions.items():
        getattr(library, function).argtypes = list(arguments)
    return library


def pack_arguments(*values: Tensor | int | None) -> ctypes.Array[ctypes.c_int64]:
    """A C struct of pointers, then 64-bit integers: the memory of tensors, which the caller keeps alive; None is NULL."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    assert all(tensor.is_cpu and tensor.is_contiguous() for tensor in tensors), "a tensor is not in memory"
    words = (value.data_ptr() if isinstance(value, Tensor) else value or 0 for value in values)
    return (ctypes.c_int64 * len(values))(*words)


def load_library(source: Path) -> ctypes.CDLL:
    """Load the build of `source`, compiling it if there is none that fits; raise `CompilerError` if that is impossible."""
    directory = cache_directory()
    sources = [source, *sorted(source.parent.glob("*.h")), *sorted(INCLUDE.glob("*.h"))]
    prefix = f"{source.stem}-{digest([*(path.read_bytes() for path in sources), _describe_cpu()])}"
    compiler = find_compiler()
    if compiler is not None:
        version = compiler_version(compiler)
        attempts = list_attempts(is_clang=b"clang" in version)
        prefix += f"-{digest([' '.join(compiler).encode(), version, repr(attempts).encode()])}"
    for path in sorted(directory.glob(f"{prefix}-*.so")):
        library = load_if_intact(path)
        if library is not None:
            return library
    if compiler is None:
        prebuilt = load_prebuilt(source)
        if prebuilt is not None:
            return prebuilt
        chosen = os.environ.get("CC")
        missing = f"CC is {chosen!r}, which is no program on the PATH," if chosen else "no C compiler on the PATH"
        raise CompilerError(f"{missing} and no earlier build in {directory}")
    if not is_writable(directory):
        raise CompilerError(f"no build of {source.name} in {directory}, which is read-only")
    library = load_if_intact(_build(compiler, attempts, source, directory, prefix))
    if library is None:
        raise CompilerError(f"the build of {source.name} in {directory} does not load")
    return library


def load_if_intact(path: Path) -> ctypes.CDLL | None:
    """The library, if it is the user's own and intact; a damaged one is removed."""
    with contextlib.suppress(OSError):
        if not path.is_symlink() and path.is_file() and is_private(path):
            if path.stem.rsplit("-", 1)[-1] == digest([path.read_bytes()]):
                return ctypes.CDLL(str(path))
            path.unlink()
    return None


def load_prebuilt(source: Path, folder: Path = PREBUILT) -> ctypes.CDLL | None:
    """The build for the highest level of this CPU that came with the package and loads, if there is one."""
    if not folder.is_dir() or platform.machine() not in ("x86_64", "AMD64"):
        return None
    features = set(read_cpu().get("flags", "").split())
    for level in (level for level, needed in LEVELS.items() if needed <= features):
        for serial in (False, True):
            path = folder / name_build(source, level, serial=serial)
            with contextlib.suppress(OSError):  # no OpenMP here
                if path.exists():
                    return ctypes.CDLL(str(path))
    return None


def name_build(source: Path, level: str, *, serial: bool = False) -> str:
    """The file name of a build in a platform wheel."""
    sources = sorted([*PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")])
    hashed = digest(path.read_bytes() for path in sources)
    return f"{source.stem}-{hashed}-{level}{'-serial' if serial else ''}.so"


def digest(parts: Iterable[bytes]) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(len(part).to_bytes(8, "little") + part)
    return content.hexdigest()[:16]


def cache_directory() -> Path:
    """The folder of builds; created if missing. If it is read-only, its builds are used but none is added."""
    chosen = chosen_cache()
    if chosen is not None:
        return _open_directory(chosen)
    with contextlib.suppress(InputError, RuntimeError):  # no home at all is a RuntimeError
        directory = _open_directory(Path.home() / ".cache" / "recombine")
        if is_writable(directory):
            return directory
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return _open_directory(Path(tempfile.gettempdir()) / f"recombine-{user}")


def is_writable(directory: Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK)


def _open_directory(directory: Path) -> Path:
    shown = f"the folder for compiled kernels (RECOMBINE_CACHE) is {str(directory)!r}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        usable = is_private(directory) and os.access(directory, os.R_OK | os.X_OK)
    except OSError as error:
        raise InputError(f"{shown}: expected a writable directory ({error.strerror})") from error
    if not usable:
        status = directory.stat()
        raise InputError(
            f"{shown}, of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}: expected one that belongs to you "
            "and that only you can write to (mode 700)"
        )
    return directory


@cache
def find_compiler() -> tuple[str, ...] | None:
    """The C compiler and its options: `CC` if set, otherwise the first known one on the PATH."""
    for candidate in (os.environ["CC"],) if os.environ.get("CC") else COMPILERS:
        try:
            name, *options = shlex.split(candidate) or [""]
        except ValueError:  # an unmatched quotation mark
            return None
        path = shutil.which(name)
        if path:
            return (path, *options)
    return None


def list_attempts(is_clang: bool) -> list[tuple[str, ...]]:
    """Flags and libraries to try in turn: with OpenMP, without, and without `-march=native`, which some clang refuses."""
    runtimes = find_torch_runtimes()
    gnu = [path for path in runtimes if Path(path).name.startswith("libgomp")][:1]
    llvm = [path for path in runtimes if Path(path).name.startswith(("libomp", "libiomp5"))][:1]
    openmp: list[tuple[str, ...]]
    if is_clang:
        openmp = [("-Xclang", "-fopenmp", path) for path in llvm] or [("-fopenmp",)]
    else:
        openmp = [*(("-fopenmp", path) for path in gnu), ("-fopenmp",)]
    portable = tuple(flag for flag in FLAGS if flag != "-march=native")
    return [*((*FLAGS, *flags) for flags in openmp), FLAGS, portable]


def find_torch_runtimes() -> list[str]:
    """Paths of the OpenMP runtimes that torch has loaded, or contains."""
    try:
        mapped = re.findall(r"/\S*lib(?:g|i)?omp\S*\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        mapped = []
    loaded = [path for path in dict.fromkeys(mapped) if "torch" in path]
    names = ("libomp*", "libiomp5*", "libgomp*")
    return loaded or [str(path) for name in names for path in sorted((Path(torch.__file__).parent / "lib").glob(name))]


def _build(
    compiler: Sequence[str], attempts: Sequence[Sequence[str]], source: Path, directory: Path, prefix: str
) -> Path:
    with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as scratch:
        built = Path(scratch) / "library.so"
        for flags in attempts:
            # libraries follow what needs them
            options = [flag for flag in flags if not flag.startswith("/")]
            libraries = [flag for flag in flags if flag.startswith("/")]
            command = [*compiler, *options, *SHARED, f"-I{INCLUDE}", "-o", str(built), str(source), *libraries, "-lm"]
            code, output = _run(command, COMPILE_TIMEOUT)
            if code == 0 and _loads(built):
                break
        else:
            lines = output.decode(errors="replace").strip().splitlines() or ["it gives no reason"]
            raise CompilerError(f"{' '.join(compiler)} cannot compile {source.name}: {lines[0]}")
        if flags in (FLAGS, attempts[-1]):
            _log.warning("%s was built without OpenMP: it uses one thread", source.name)
        built.chmod(0o700)  # whatever the umask says
        final = directory / f"{prefix}-{digest([built.read_bytes()])}.so"
        built.replace(final)
    return final


def _loads(path: Path) -> bool:
    """Whether all the libraries that it was linked to are there."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


_hung: set[str] = set()  # compilers that did not end; the next kernel need not wait for them again


def _run(command: Sequence[str], timeout: float) -> tuple[int, bytes]:
    """The exit code and the output of a compiler."""
    try:
        if command[0] not in _hung:
            done = subprocess.run(
                command, timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            return done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        _hung.add(command[0])
    except OSError as error:
        raise CompilerError(f"{command[0]} does not run: {error.strerror}") from error
    raise CompilerError(f"{command[0]} did not end within {timeout:.0f} seconds")


@cache
def compiler_version(compiler: tuple[str, ...]) -> bytes:
    return _run([*compiler, "--version"], min(COMPILE_TIMEOUT, VERSION_TIMEOUT))[1]


@cache
def read_cpu() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo, such as `model name` and `flags`; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def name_processor() -> str:
    """Model name of the CPU."""
    return read_cpu().get("model name") or platform.processor() or platform.machine()


def _describe_cpu() -> bytes:
    """What `-march=native` depends on: model and features, since cloud machines give many CPUs one name."""
    names = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
    features = [f"{name}: {read_cpu()[name]}" for name in names if name in read_cpu()] or [platform.processor()]
    return "\n".join((f"{platform.system()} {platform.machine()}", *features)).encode()


Function = TypeVar("Function", bound=Callable[..., Any])


def constant_in_graphs(function: Function) -> Function:
    """`torch.compiler.assume_constant_result` without the import of torch's compiler, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def is_amd_with_avx512() -> bool:
    """AMD's Zen 4 and later: torch's default library of products, MKL, is not at its best there."""
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_avx512 and "AuthenticAMD" in (read_cpu().get("vendor_id") or platform.processor())


@cache
def keep_freed_memory() -> None:
    """Let the allocator keep memory that is freed, as a training step needs the same again; for the whole process.

    glibc returns the end of its heap to the system beyond twice the size of the largest block that was ever returned on its own
    (mallopt(3)), and the system clears each page when it is needed again. A block just below its limit of 32 MiB raises that to
    64 MiB.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8, device="cpu")


MIN_BLOCK, MAX_BLOCK = 1 << 16, 1 << 24
"""Bytes of a block on the free list. The allocator caches smaller ones; for larger ones the cost hardly matters."""
MAX_FREE_BYTES = 1 << 26
"""Bytes of all blocks on the free list. The oldest are released first."""


class _BlockUser(weakref.ref[np.ndarray]):
    """The array that uses a block; weak, so that its end is noticed. `weakref.finalize` would be slow."""

    __slots__ = ("block",)
    block: Tensor


_used: dict[int, _BlockUser] = {}
_free: dict[int, Tensor] = {}  # the oldest first


def empty_block(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor with arbitrary content, on the CPU even where another device is the default.

    Large blocks come from a free list, since the system's pages cost as much as a kernel that fills them.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if not MIN_BLOCK <= num_bytes <= MAX_BLOCK:
        return torch.empty(shape, dtype=dtype, device="cpu")
    block = _allocate(num_bytes)
    memory = block.numpy()
    user = _BlockUser(memory, _release)
    user.block = block
    _used[id(block)] = user
    return torch.from_numpy(memory).view(dtype).view(shape)


def _allocate(num_bytes: int) -> Tensor:
    """The free block of this size that was used last, or a new one."""
    for key in reversed(list(_free)):
        block = _free.get(key)
        if block is not None and block.nbytes == num_bytes and _free.pop(key, None) is not None:  # no thread was faster
            return block
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")


def _release(user: _BlockUser, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    if is_finalizing():  # the modules, torch among them, may be cleared already; hence a default argument
        return
    _free[id(user.block)] = _used.pop(id(user.block)).block
    num_bytes = 0
    for key in reversed(list(_free)):
        other = _free.get(key)
        num_bytes += 0 if other is None else other.nbytes
        if num_bytes > MAX_FREE_BYTES:
            _free.pop(key, None)
