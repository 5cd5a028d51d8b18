"""Compile the C kernels on first use, for this very machine, and keep the result.

A build is one file in the folder that `build_cache` gives:

    <name>-<hash of source and CPU>-<hash of compiler and flags>-<hash of the file's own content>.so

The first two hashes say whether it fits, the last whether it is intact: a truncated or altered file is built again. It is
written under a temporary name and renamed, so that processes that start together do not disturb each other. Without a
compiler, any intact build for this source and CPU is used. Where OpenMP is not found, the build has one thread.

Where compiled kernels are kept, and which of them are trusted.

The folder is `RECOMBINE_CACHE`, or `~/.cache/recombine`; where the home folder is missing or read-only, a folder of the
user's own among the temporary files. A build runs with the rights of whoever loads it. So folder and file must belong to the
user (or to root), and nobody else may be able to write to them; and the name of a file ends in the hash of its content.

Find OpenMP for a compiler: the flags to try, best first.

gcc brings its own runtime, libgomp. clang needs LLVM's, libomp, and often does not have it: Apple's clang even refuses
`-fopenmp`, but takes `-Xclang -fopenmp` and any libomp it is given (Homebrew's, or the one inside torch). The runtime that
torch has loaded comes first: a second one would keep a second pool of threads spinning, and two of LLVM's end the process.

Kernels that came with a platform wheel, for machines without a compiler (`make wheel-native`).

    built/<name>-<hash of all kernel sources>-<level of x86-64>[-serial].so

The highest level that this CPU has is taken; the serial build serves where there is no OpenMP. Builds of other sources do not
fit.

Which processor this is, as far as the rules that choose a kernel depend on it.

The rules are taken from measurements (`benchmarks/kernel_choice.py`, `benchmarks/dense_products.py`). They depend on shapes
and on the kind of processor only, never on a timing at run time, so that a resumed run takes the same path.
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
import signal
import stat
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from recombine.foundation.errors import InputError
from recombine.foundation.files import chosen_cache, is_private


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


LLVM_RUNTIMES = ("libomp", "libiomp5")
PLACES = (
    "/opt/homebrew/opt/libomp/lib",
    "/usr/local/opt/libomp/lib",
    "/opt/local/lib/libomp",
    "/usr/lib/llvm-*/lib",
    "/usr/lib/*-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def find_openmp(is_clang: bool) -> list[tuple[str, ...]]:
    """Flags and libraries (paths) for each way to OpenMP, best first."""
    of_torch = find_torch_runtimes()
    if not is_clang:
        gnu = [path for path in of_torch if Path(path).name.startswith("libgomp")]
        return [*(("-fopenmp", path) for path in gnu[:1]), ("-fopenmp",)]
    llvm = [path for path in of_torch if Path(path).name.startswith(LLVM_RUNTIMES)]
    # with a runtime of LLVM in torch, another one must not be loaded beside it
    found = llvm[:1] or list(_search_places())[:1]
    ways: list[tuple[str, ...]] = [("-Xclang", "-fopenmp", path) for path in found]
    return ways if llvm else [*ways, ("-fopenmp",)]


def find_torch_runtimes() -> list[str]:
    """Paths of the OpenMP runtimes that torch has loaded, or brings with it."""
    try:
        mapped = re.findall(r"/\S*lib(?:g|i)?omp\S*\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        mapped = []
    loaded = [path for path in dict.fromkeys(mapped) if "torch" in path]
    return loaded or _list_runtimes(Path(torch.__file__).parent / "lib", (*LLVM_RUNTIMES, "libgomp"))


def _search_places() -> Iterator[str]:
    for place in PLACES:
        for folder in sorted(Path("/").glob(place.removeprefix("/")), reverse=True):
            yield from _list_runtimes(folder, LLVM_RUNTIMES)


def _list_runtimes(folder: Path, names: Sequence[str]) -> list[str]:
    suffix = ".dylib" if platform.system() == "Darwin" else ".so*"
    return [str(path) for name in names for path in sorted(folder.glob(f"{name}{suffix}"))]


PACKAGE = Path(__file__).parent.parent
INCLUDE = PACKAGE / "attention" / "cpu"
"""Headers that kernels of other rooms use too."""
FOLDER = PACKAGE / "built"
_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
LEVELS = {  # features of each level, the highest first
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
}


def hash_sources() -> str:
    """The hash of every file that kernels are compiled from."""
    return digest(path.read_bytes() for path in sorted([*PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")]))


def name_build(source: Path, level: str, *, serial: bool = False) -> str:
    """The file name of a build."""
    return f"{source.stem}-{hash_sources()}-{level}{'-serial' if serial else ''}.so"


def list_levels(features: set[str]) -> list[str]:
    """The levels that a CPU with these features has, the highest first."""
    return [level for level, needed in LEVELS.items() if needed <= features]


def load_prebuilt(source: Path, folder: Path = FOLDER) -> ctypes.CDLL | None:
    """The best build that came with the package and runs here, if there is one."""
    if not folder.is_dir() or platform.machine() not in ("x86_64", "AMD64"):
        return None
    for level in list_levels(set(read_cpu().get("flags", "").split())):
        for serial in (False, True):
            path = folder / name_build(source, level, serial=serial)
            try:
                if path.exists():
                    return ctypes.CDLL(str(path))
            except OSError:  # no OpenMP here
                continue
    return None


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


COMPILERS = ("cc", "gcc", "clang")
# contraction to fused multiply-adds is exact enough; -ffast-math is not wanted: NaN in must be NaN out
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
SHARED = ("-shared", "-fPIC")
COMPILE_TIMEOUT = 600.0
"""Seconds after which a compiler is ended; the largest kernel takes about 20."""
VERSION_TIMEOUT = 60.0
"""The same when it is only asked for its version."""

_log = logging.getLogger(__name__)


class CompilerError(RuntimeError):
    """The kernel cannot be built or loaded here; the message says why."""


def load_library(source: Path) -> ctypes.CDLL:
    """Load the build of `source`, compiling it if there is none that fits; raise `CompilerError` if that is impossible."""
    directory = cache_directory()
    prefix = f"{source.stem}-{digest([*(path.read_bytes() for path in list_sources(source)), _describe_cpu()])}"
    compiler = find_compiler()
    if compiler is not None:
        version = _compiler_version(compiler)
        attempts = list_attempts(is_clang=b"clang" in version)
        prefix += f"-{digest([' '.join(compiler).encode(), version, repr(attempts).encode()])}"
    for path in sorted(directory.glob(f"{prefix}-*.so")):
        library = load_if_intact(path)
        if library is not None:
            return library
    if compiler is None:
        shipped = load_prebuilt(source)
        if shipped is not None:
            return shipped
        raise CompilerError(f"{_explain_missing_compiler()} and no earlier build in {directory}")
    if not is_writable(directory):
        raise CompilerError(f"no build of {source.name} in {directory}, which is read-only")
    library = load_if_intact(_build(compiler, attempts, source, directory, prefix))
    if library is None:
        raise CompilerError(f"the build of {source.name} in {directory} does not load")
    return library


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


def list_sources(source: Path) -> list[Path]:
    """A C file and all that it includes by name, directly or not."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = None
            names = re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
            beside = [path.parent / name for name in names]
            waiting += [file if file.exists() else INCLUDE / file.name for file in beside]
    return sorted(found)


@cache
def find_compiler() -> tuple[str, ...] | None:
    """The C compiler and the options that come with its name: `CC` if set, otherwise the first known one on the PATH."""
    for candidate in (os.environ["CC"],) if os.environ.get("CC") else COMPILERS:
        try:
            name, *options = shlex.split(candidate) or [""]
        except ValueError:  # a quotation mark without its partner
            return None
        path = shutil.which(name)
        if path:
            return (path, *options)
    return None


def _explain_missing_compiler() -> str:
    if os.environ.get("CC"):
        return f"CC is {os.environ['CC']!r}, which is no program on the PATH,"
    return f"no C compiler on the PATH (looked for {', '.join(COMPILERS)})"


def list_attempts(is_clang: bool) -> list[tuple[str, ...]]:
    """Flags to try one after the other: with OpenMP, without, and without `-march=native`, which some clang refuses."""
    portable = tuple(flag for flag in FLAGS if flag != "-march=native")
    return [*((*FLAGS, *openmp) for openmp in find_openmp(is_clang)), FLAGS, portable]


def _build(
    compiler: Sequence[str], attempts: Sequence[Sequence[str]], source: Path, directory: Path, prefix: str
) -> Path:
    with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as scratch:
        built, errors = Path(scratch) / "library.so", Path(scratch) / "errors"
        for flags in attempts:
            # libraries follow what needs them
            options = [flag for flag in flags if not flag.startswith("/")]
            libraries = [flag for flag in flags if flag.startswith("/")]
            command = [*compiler, *options, *SHARED, f"-I{INCLUDE}", "-o", str(built), str(source), *libraries, "-lm"]
            if _run(command, errors, COMPILE_TIMEOUT) == 0 and _loads(built):
                break
        else:
            lines = errors.read_text(errors="replace").strip().splitlines() or ["it gives no reason"]
            raise CompilerError(f"{' '.join(compiler)} cannot compile {source.name}: {lines[0]}")
        if flags in (FLAGS, attempts[-1]):
            _log.warning("%s was built without OpenMP: it uses one thread", source.name)
        built.chmod(0o700)  # whatever the umask says
        final = directory / f"{prefix}-{digest([built.read_bytes()])}.so"
        built.replace(final)
    return final


_hung: set[str] = set()  # compilers that did not end; the next kernel need not wait for them again


def _run(command: Sequence[str], output: Path, patience: float) -> int:
    """Run a compiler to its end, or end it and what it started; returns its exit code."""
    complaint = CompilerError(f"{command[0]} did not end within {patience:.0f} seconds")
    if command[0] in _hung:
        raise complaint
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            _hung.add(command[0])
            raise complaint from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.wait()


def _loads(path: Path) -> bool:
    """Whether all it was linked to is there."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


@cache
def _compiler_version(compiler: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "version"
        try:
            _run([*compiler, "--version"], output, min(COMPILE_TIMEOUT, VERSION_TIMEOUT))
        except OSError as error:
            raise CompilerError(f"{compiler[0]} does not run: {error.strerror}") from error
        return output.read_bytes()


def _describe_cpu() -> bytes:
    """What `-march=native` depends on: model and features, since cloud machines give many CPUs one name."""
    names = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
    features = [f"{name}: {read_cpu()[name]}" for name in names if name in read_cpu()] or [platform.processor()]
    return "\n".join((f"{platform.system()} {platform.machine()}", *features)).encode()


Function = TypeVar("Function", bound=Callable[..., Any])


def constant_in_graphs(function: Function) -> Function:
    """What `torch.compiler.assume_constant_result` does, without the import of torch's compiler, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def is_amd_with_avx512() -> bool:
    """AMD's Zen 4 and later: torch's default library of products, MKL, is not at its best there."""
    return _detect_amd_with_avx512()


@cache
def _detect_amd_with_avx512() -> bool:
    """The same outside of traced code."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return "AuthenticAMD" in read_cpu().get("vendor_id", platform.processor())


MIN_BLOCK, MAX_BLOCK = 1 << 16, 1 << 24
"""Bytes of a block that is kept. The allocator itself keeps smaller ones; for larger ones the cost hardly matters."""
MAX_FREE_BYTES = 1 << 26
"""Bytes of all blocks that nobody uses. More are given back, the oldest first."""


class _User(weakref.ref[np.ndarray]):
    """The array that uses a block; weak, so that its end is noticed. `weakref.finalize` would be slow."""

    __slots__ = ("block",)
    block: Tensor


_used: dict[int, _User] = {}
_free: dict[int, Tensor] = {}  # the oldest first


def empty_block(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor with arbitrary content, on the CPU even where another device is the default."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if not MIN_BLOCK <= num_bytes <= MAX_BLOCK:
        return torch.empty(shape, dtype=dtype, device="cpu")
    block = _take(num_bytes)
    memory = block.numpy()
    user = _User(memory, _give_back)
    user.block = block
    _used[id(block)] = user
    return torch.from_numpy(memory).view(dtype).view(shape)


def _take(num_bytes: int) -> Tensor:
    """The free block of this size that was used last, or a new one."""
    for key in reversed(list(_free)):
        block = _free.get(key)
        if block is not None and len(block) == num_bytes and _free.pop(key, None) is not None:  # no thread was faster
            return block
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")


def _give_back(user: _User) -> None:
    _free[id(user.block)] = _used.pop(id(user.block)).block
    num_bytes = 0
    for key in reversed(list(_free)):
        other = _free.get(key)
        num_bytes += 0 if other is None else len(other)
        if num_bytes > MAX_FREE_BYTES:
            _free.pop(key, None)
