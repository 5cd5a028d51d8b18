"""A built wheel works without the checkout: source, templates, C kernel, types."""

import os
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_what_is_not_python(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "recombine/py.typed" in names
    assert "recombine/attention/cpu/cpu.c" in names
    assert any(name.startswith("recombine/report/templates/") for name in names)
    assert not any(name.startswith("tests/") for name in names)


@pytest.mark.slow
def test_the_wheel_works_elsewhere(wheel, tmp_path):
    """Unpacked into an empty folder, run from another one: trains with the kernel and reports."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "RECOMBINE_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout

    assert str(site) in run("-c", "import recombine; print(recombine.__file__)")
    sizes = ["--embedding-dim", "16", "--kqv-dim", "8", "--num-heads", "4", "--num-examples", "4"]
    train = ["train", "fuzzy-logic", *sizes, "--steps", "20", "--evaluation-instances", "50", "-q"]
    path = run("-m", "recombine.cli.main", *train).strip()
    run("-m", "recombine.cli.main", "report", path, "-o", "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1_000
    used = run(
        "-c", "from recombine.attention.cpu import kernels as cpu; print(cpu.is_available(), cpu.why_unavailable())"
    )
    assert used.startswith("True") or "compiler" in used


def test_every_dependency_has_a_lower_bound_that_can_be_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = runpy.run_path(str(ROOT / "packaging" / "lowest_versions.py"))
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirements in lists:
        assert len(script["read_lowest"](requirements)) == len(requirements)
    with pytest.raises(SystemExit, match="expected NAME>=VERSION"):
        script["read_lowest"](["numpy"])
    assert script["read_kept"](["torch", "unknown"]).keys() == {"torch"}
    assert all((ROOT / "tests" / f"{name}.py").exists() for name in script["TESTS"].split())
