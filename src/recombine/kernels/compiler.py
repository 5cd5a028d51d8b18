"""Compile the C kernels on first use, for this very machine, and keep the result.

A build is one file in the cache directory, `RECOMBINE_CACHE` or `~/.cache/recombine`:

    <name>-<hash of source and CPU>-<hash of compiler and flags>-<hash of the file's own content>.so

The first two hashes say whether it fits, the last whether it is intact: a truncated or altered file is built again. It is
written under a temporary name and renamed, so that processes that start together do not disturb each other. Without a
compiler, any intact build for this source and CPU is used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from recombine.errors import InputError

COMPILERS = ("cc", "gcc", "clang")
# contraction to fused multiply-adds is exact enough; -ffast-math is not wanted: NaN in must be NaN out
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
SHARED = ("-shared", "-fPIC")


class CompilerError(RuntimeError):
    """The kernel cannot be built or loaded here; the message says why."""


def cache_directory() -> Path:
    """Where builds are kept; created if missing."""
    chosen = os.environ.get("RECOMBINE_CACHE")
    directory = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "recombine"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"RECOMBINE_CACHE is {str(directory)!r}: expected a writable directory ({error.strerror})"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"RECOMBINE_CACHE is {str(directory)!r}: expected a writable directory (permission denied)")
    return directory


def load_library(source: Path, headers: Sequence[Path] = ()) -> ctypes.CDLL:
    """Load the build of `source`, compiling it if there is none that fits; raise `CompilerError` if that is impossible."""
    directory = cache_directory()
    prefix = f"{source.stem}-{_digest([*(path.read_bytes() for path in (source, *headers)), _describe_cpu()])}"
    compiler = find_compiler()
    flags = FLAGS if compiler is None else (*FLAGS, *_openmp_flags())
    exact = (
        prefix if compiler is None else f"{prefix}-{_digest([_compiler_version(compiler), ' '.join(flags).encode()])}"
    )
    for path in sorted(directory.glob(f"{exact}-*.so")):
        library = _load_if_intact(path)
        if library is not None:
            return library
    if compiler is None:
        raise CompilerError(
            f"no C compiler on the PATH (looked for {', '.join(COMPILERS)}) and no earlier build in {directory}"
        )
    library = _load_if_intact(_build(compiler, flags, source, directory, exact))
    if library is None:
        raise CompilerError(f"the build of {source.name} in {directory} does not load")
    return library


@cache
def find_compiler() -> str | None:
    """The C compiler: `CC` if set, otherwise the first known one on the PATH."""
    candidates = (os.environ["CC"],) if os.environ.get("CC") else COMPILERS
    return next((path for name in candidates if (path := shutil.which(name))), None)


def _build(compiler: str, flags: Sequence[str], source: Path, directory: Path, prefix: str) -> Path:
    without_openmp = [flag for flag in flags if flag in FLAGS]
    portable = [flag for flag in without_openmp if flag != "-march=native"]  # some clang on ARM does not know it
    attempts = [flags, [*without_openmp, "-fopenmp"], without_openmp, portable]
    with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as scratch:
        built = Path(scratch) / "library.so"
        for attempt in attempts:
            command = [compiler, *attempt, *SHARED, "-o", str(built), str(source), "-lm"]
            outcome = subprocess.run(command, capture_output=True, text=True, check=False)
            if outcome.returncode == 0 and built.exists():
                break
        else:
            lines = outcome.stderr.strip().splitlines() or [f"exit code {outcome.returncode}"]
            raise CompilerError(f"{compiler} cannot compile {source.name}: {lines[0]}")
        final = directory / f"{prefix}-{_digest([built.read_bytes()])}.so"
        built.replace(final)
    return final


def _load_if_intact(path: Path) -> ctypes.CDLL | None:
    try:
        if path.stem.rsplit("-", 1)[-1] != _digest([path.read_bytes()]):
            path.unlink(missing_ok=True)
            return None
        return ctypes.CDLL(str(path))
    except OSError:
        return None


def _openmp_flags() -> list[str]:
    """Link to the OpenMP runtime torch has loaded: a second one would keep a second pool of threads spinning."""
    try:
        mapped = re.findall(r"/\S*libgomp\S*\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    except OSError:
        mapped = []
    loaded = [path for path in dict.fromkeys(mapped) if "torch" in path]
    return [*loaded[:1], "-fopenmp"]


def _digest(parts: Iterable[bytes]) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(len(part).to_bytes(8, "little") + part)
    return content.hexdigest()[:16]


def _compiler_version(compiler: str) -> bytes:
    return subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout


def _describe_cpu() -> bytes:
    """What `-march=native` depends on: model and features, since cloud machines give many CPUs one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
        features = "\n".join(line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted)
    except OSError:
        features = platform.processor()
    return f"{platform.system()} {platform.machine()}\n{features}".encode()
