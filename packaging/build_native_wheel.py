"""Build a platform wheel with compiled kernels, for machines without a compiler.

    python packaging/build_native_wheel.py [--out dist]

It is the pure wheel with the kernels in `recombine/built`, for x86-64-v3 and v4, with OpenMP and without. Which is
loaded is decided at run time (`recombine.foundation.native`).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from recombine.foundation.native import FLAGS, INCLUDE, LEVELS, PACKAGE, SHARED, find_compiler, name_build

ROOT = Path(__file__).parent.parent
TAG = "py3-none-linux_x86_64"


def compile_kernels(folder: Path) -> list[Path]:
    """Every kernel for every level, with and without OpenMP."""
    compiler = find_compiler()
    if compiler is None:
        raise SystemExit("no C compiler: expected cc, gcc or clang on the PATH")
    built = []
    for source in sorted(PACKAGE.rglob("*.c")):
        for level in LEVELS:
            for serial in (False, True):
                flags = [f"-march={level}" if flag == "-march=native" else flag for flag in FLAGS]
                path = folder / name_build(source, level, serial=serial)
                openmp = [] if serial else ["-fopenmp"]
                subprocess.run(
                    [*compiler, *flags, *openmp, *SHARED, f"-I{INCLUDE}", "-o", str(path), str(source), "-lm"],
                    check=True,
                )
                built.append(path)
    return built


def repack(pure: Path, built: list[Path], out: Path) -> Path:
    """A copy of a wheel with more files, for one platform."""
    final = out / pure.name.replace("py3-none-any", TAG)
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(final, "w", zipfile.ZIP_DEFLATED) as new:
        contents = {name: old.read(name) for name in old.namelist()}
        about = next(name for name in contents if name.endswith(".dist-info/WHEEL"))
        record = about.removesuffix("WHEEL") + "RECORD"
        text = contents[about].decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        contents[about] = text.replace("Tag: py3-none-any", f"Tag: {TAG}").encode()
        contents |= {f"recombine/built/{path.name}": path.read_bytes() for path in built}
        del contents[record]
        lines = [f"{name},sha256={_hash(content)},{len(content)}" for name, content in contents.items()]
        for name, content in {**contents, record: ("\n".join([*lines, f"{record},,"]) + "\n").encode()}.items():
            new.writestr(name, content)
    return final


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", scratch, str(ROOT)], check=True)
        (pure,) = Path(scratch).glob("*.whl")
        print(repack(pure, compile_kernels(Path(scratch)), out))


if __name__ == "__main__":
    main()
