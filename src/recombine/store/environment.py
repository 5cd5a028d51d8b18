"""The environment of a run: versions, code, machine and kernel, as far as they can change a number."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from recombine.kernels import compiler, cpu_library
from recombine.store.schema import Environment

SOURCE_SUFFIXES = (".py", ".c", ".h")


def describe_environment(device: torch.device | str, num_processes: int = 1) -> Environment:
    """The environment of this process, for computations on `device` by this number of processes."""
    return {
        "recombine": metadata.version("recombine"),
        "source_sha256": hash_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": _processor_name(),
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        "num_processes": num_processes,
        "kernel": describe_kernel(device),
    }


def hash_source(root: Path | None = None) -> str:
    """SHA-256 of the package's Python and C source, the same from a checkout and from an installed wheel."""
    return _hash_own_source() if root is None else _hash_folder(root)


@cache
def _hash_own_source() -> str:
    """Kept: it is the source that this process has loaded, and it is asked for with every run."""
    return _hash_folder(Path(__file__).parent.parent)


def _hash_folder(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCE_SUFFIXES):
        digest.update(str(path.relative_to(root).as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe_kernel(device: torch.device | str) -> str:
    """The attention kernel that training on `device` uses: its name, and how it was compiled or why it is not used."""
    chosen = os.environ.get("RECOMBINE_KERNEL", "auto")
    if chosen not in ("auto", "cpu"):
        return f"{chosen} (RECOMBINE_KERNEL)"
    if torch.device(device).type != "cpu":
        return "reference (the compiled kernel is for CPUs)"
    library = cpu_library.open_library()
    if not isinstance(library, ctypes.CDLL):
        return f"reference ({library})"
    build = Path(library._name).stem.rsplit("-", 1)[-1]  # the hash of the compiled file
    return f"cpu (build {build}, {_describe_compiler()})"


@cache
def _describe_compiler() -> str:
    command = compiler.find_compiler()
    if command is None:
        return "compiled earlier"
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return " ".join([*shown.splitlines()[:1], *compiler.FLAGS])


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()
