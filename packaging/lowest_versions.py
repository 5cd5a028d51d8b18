"""Test the package with the lowest version of every dependency that pyproject.toml allows.

    python packaging/lowest_versions.py [--extras language] [--keep torch] [--folder DIR] [-- PYTEST ARGUMENTS]

It makes an environment with exactly those versions, prints them, and runs the tests there. Tools that only the tests need
have no bound here. `--keep` leaves a dependency at the version in constraints.txt. torch is kept by default, because on Linux
its lowest version brings several gigabytes of CUDA packages; `--keep` without a name tests that one too.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "beartype", "pandas")
# Without files that need a browser, a cluster, the documentation tools or a package of an extra.
TESTS = (
    "attention/test_hyla cli/test_cli cli/test_cli_errors foundation/test_display foundation/test_settings inside/test_diagnose "
    "inside/test_probe inside/test_probe_decode inside/test_probe_structure integrations/test_exchange "
    "integrations/test_text_exchange models/test_outside report/test_leaderboard report/test_report sweeps/test_sweep "
    "tasks/test_fuzzy_logic tasks/test_sraven tasks/test_text test_compositions training/test_benchmark "
    "training/test_evaluate training/test_freshness training/test_golden training/test_run training/test_store"
)


def read_lowest(requirements: Sequence[str]) -> dict[str, str]:
    """The lower bound of each requirement of the form `name>=version`."""
    lowest = {}
    for requirement in requirements:
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)(\[[\w,]+\])?>=([\w.]+)", requirement)
        if found is None:
            raise SystemExit(f"{requirement!r}: expected NAME>=VERSION")
        lowest[found[1]] = found[3]
    return lowest


def read_kept(names: Sequence[str]) -> dict[str, str]:
    """The versions of these dependencies in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    return {name: pinned[name] for name in names if name in pinned}


def make_environment(folder: Path, constraints: Path, extras: Sequence[str]) -> Path:
    """An environment with the package under these constraints; returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    package = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    subprocess.run([*pip, "--editable", package, *TOOLS], check=True)
    return python


def check_versions(python: Path, wanted: dict[str, str]) -> None:
    """Require the environment to have exactly these versions, and print them."""
    listed = subprocess.run([str(python), "-m", "pip", "list", "--format", "json"], capture_output=True, check=True)
    present = {_plain(row["name"]): row["version"] for row in json.loads(listed.stdout)}
    for name, version in wanted.items():
        print(f"{name} {present[_plain(name)]}")
        if not re.match(rf"{re.escape(version)}(\.0)*(\+|$)", present[_plain(name)]):
            raise SystemExit(f"{name} is {present[_plain(name)]}: expected {version}")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extras", nargs="*", default=[], help="extras whose lower bounds are tested too")
    parser.add_argument("--keep", nargs="*", default=["torch"], help="dependencies that stay as in constraints.txt")
    parser.add_argument("--folder", type=Path, help="folder for the environment (default: a temporary one)")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest (default: the tests listed in this file)")
    flags = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"]]
    for extra in flags.extras:
        requirements += project["optional-dependencies"][extra]
    wanted = read_lowest(requirements) | read_kept(flags.keep)
    with tempfile.TemporaryDirectory() as temporary:
        constraints = Path(temporary) / "lowest.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()))
        python = make_environment(flags.folder or Path(temporary) / "environment", constraints, flags.extras)
        check_versions(python, wanted)
        tests = flags.pytest or [f"tests/{name}.py" for name in TESTS.split()]
        sys.exit(subprocess.run([str(python), "-m", "pytest", *tests], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
