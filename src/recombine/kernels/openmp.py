"""Find OpenMP for a compiler: the flags to try, best first.

gcc brings its own runtime, libgomp. clang needs LLVM's, libomp, and often does not have it: Apple's clang even refuses
`-fopenmp`, but takes `-Xclang -fopenmp` and any libomp it is given (Homebrew's, or the one inside torch). The runtime that
torch has loaded comes first: a second one would keep a second pool of threads spinning, and two of LLVM's end the process.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

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
