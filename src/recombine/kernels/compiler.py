"""Compile the C kernels on first use, for this very machine, and keep the result.

A build is one file in the folder that `build_cache` gives:

    <name>-<hash of source and CPU>-<hash of compiler and flags>-<hash of the file's own content>.so

The first two hashes say whether it fits, the last whether it is intact: a truncated or altered file is built again. It is
written under a temporary name and renamed, so that processes that start together do not disturb each other. Without a
compiler, any intact build for this source and CPU is used. Where OpenMP is not found, the build has one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from recombine.errors import InputError
from recombine.kernels.build_cache import cache_directory, digest, is_writable, load_if_intact
from recombine.kernels.openmp import find_openmp
from recombine.kernels.prebuilt import load_prebuilt

COMPILERS = ("cc", "gcc", "clang")
# contraction to fused multiply-adds is exact enough; -ffast-math is not wanted: NaN in must be NaN out
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
SHARED = ("-shared", "-fPIC")
PATIENCE = 600.0
"""Seconds after which a compiler is ended; the largest kernel takes about 20."""
SHORT_PATIENCE = 60.0
"""The same when it is only asked for its version."""

_log = logging.getLogger(__name__)


class CompilerError(RuntimeError):
    """The kernel cannot be built or loaded here; the message says why."""


def load_library(source: Path, headers: Sequence[Path] = ()) -> ctypes.CDLL:
    """Load the build of `source`, compiling it if there is none that fits; raise `CompilerError` if that is impossible."""
    directory = cache_directory()
    prefix = f"{source.stem}-{digest([*(path.read_bytes() for path in (source, *headers)), _describe_cpu()])}"
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


def open_kernel(name: str, headers: Sequence[str], functions: Mapping[str, Sequence[Any]]) -> ctypes.CDLL | str:
    """A kernel of this folder, or why there is none, in one line. `functions`: the types of their arguments."""
    here = Path(__file__).parent
    try:
        library = load_library(here / name, headers=[here / header for header in headers])
    except (CompilerError, InputError, OSError) as error:
        return str(error)
    for function, arguments in functions.items():
        getattr(library, function).argtypes = list(arguments)
    return library


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
            command = [*compiler, *options, *SHARED, "-o", str(built), str(source), *libraries, "-lm"]
            if _run(command, errors, PATIENCE) == 0 and _loads(built):
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
            _run([*compiler, "--version"], output, min(PATIENCE, SHORT_PATIENCE))
        except OSError as error:
            raise CompilerError(f"{compiler[0]} does not run: {error.strerror}") from error
        return output.read_bytes()


def _describe_cpu() -> bytes:
    """What `-march=native` depends on: model and features, since cloud machines give many CPUs one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
        features = "\n".join(line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted)
    except OSError:
        features = platform.processor()
    return f"{platform.system()} {platform.machine()}\n{features}".encode()
