"""Write `requirements.lock`: the versions of `constraints.txt` with the SHA-256 of the file that pip would install here.

    python packaging/lock_hashes.py            # writes the file; needs an index of packages
    python packaging/lock_hashes.py --check    # compares the two files and the environment, without a network

torch is left out: builds for CPUs and for each version of CUDA share a version number. With `--check`, the exit code is 2 if
a version lacks a hash, if the files disagree, or if a dependency of the package is not pinned.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK, CONSTRAINTS = ROOT / "requirements.lock", ROOT / "constraints.txt"
HEADER = """\
# The versions of constraints.txt with the hashes of their files for Python 3.11 on 64-bit Linux. Written by
# packaging/lock_hashes.py; SECURITY.md says how to install them, and why torch is not here.
"""
LEFT_OUT = ("torch",)


def normalise(name: str) -> str:
    """The name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_versions(path: Path) -> dict[str, str]:
    """Version by normalised name."""
    found = re.findall(r"^([\w.-]+)==([\w.+!]+)", path.read_text(), re.MULTILINE)
    return {normalise(name): version for name, version in found}


def read_hashes(path: Path) -> dict[str, list[str]]:
    """SHA-256 of the files of each package."""
    entries = re.split(r"\n(?=\w)", path.read_text())
    return {
        normalise(entry.split("==")[0]): re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        for entry in entries
        if "==" in entry.split("\n")[0]
    }


def find_faults() -> list[str]:
    """What is wrong with the pinned versions, a line each."""
    pinned, locked, hashes = read_versions(CONSTRAINTS), read_versions(LOCK), read_hashes(LOCK)
    faults = [f"{name} has no hash in {LOCK.name}" for name in pinned if name not in (*locked, *LEFT_OUT)]
    faults += [f"{name} is not in {CONSTRAINTS.name}" for name in locked if name not in pinned]
    faults += [
        f"{name} is {locked[name]} in {LOCK.name} and {pinned[name]} in {CONSTRAINTS.name}"
        for name in locked
        if name in pinned and locked[name] != pinned[name]
    ]
    faults += [f"{name} is listed without a hash" for name in locked if not hashes.get(name)]
    faults += [f"{name} must not have a hash" for name in LEFT_OUT if name in locked]
    faults += [
        f"{name}, a dependency of the package, is not in {CONSTRAINTS.name}" for name in read_needed() - {*pinned}
    ]
    return faults


def read_needed() -> set[str]:
    """What the package itself and the extra `dev` name in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return {normalise(re.split(r"[\[<>=!~; ]", line)[0]) for line in needed}


def ask_pip(versions: dict[str, str]) -> dict[str, str]:
    """The SHA-256 of the file of each package that pip would install."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = Path(scratch, "wanted.txt"), Path(scratch, "report.json")
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command = [sys.executable, "-m", "pip", "install", *options, "--report", str(report), "-r", str(wanted)]
        subprocess.run(command, check=True)
        installs = json.loads(report.read_text())["install"]
    return {
        normalise(item["metadata"]["name"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in installs
    }


def write_lock() -> None:
    """Write the file for all pinned versions but torch."""
    versions = {name: version for name, version in read_versions(CONSTRAINTS).items() if name not in LEFT_OUT}
    hashes = ask_pip(versions)
    lines = [f"{name}=={versions[name]} \\\n    --hash=sha256:{hashes[name]}\n" for name in sorted(versions)]
    LOCK.write_text(HEADER + "".join(lines))
    print(f"{len(lines)} packages")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    if not parser.parse_args().check:
        write_lock()
    faults = find_faults()
    print(*faults, sep="\n") if faults else print(f"{LOCK.name} has a hash for every version but torch")
    return 2 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
