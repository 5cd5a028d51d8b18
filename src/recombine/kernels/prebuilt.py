"""Kernels that came with a platform wheel, for machines without a compiler (`make wheel-native`).

    built/<name>-<hash of all kernel sources>-<level of x86-64>[-serial].so

The highest level that this CPU has is taken; the serial build serves where there is no OpenMP. Builds of other sources do not
fit.
"""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

from recombine.kernels.build_cache import digest

FOLDER = Path(__file__).parent / "built"
_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
LEVELS = {  # features of each level, the highest first
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
}


def hash_sources() -> str:
    """The hash of every file that kernels are compiled from."""
    here = Path(__file__).parent
    return digest(path.read_bytes() for path in sorted([*here.glob("*.c"), *here.glob("*.h")]))


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
    for level in list_levels(read_features()):
        for serial in (False, True):
            path = folder / name_build(source, level, serial=serial)
            try:
                if path.exists():
                    return ctypes.CDLL(str(path))
            except OSError:  # no OpenMP here
                continue
    return None


def read_features() -> set[str]:
    """The features of this CPU, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))
