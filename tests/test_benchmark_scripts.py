"""The scripts in `benchmarks/` run, each in a small size."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = {
    "charts.py": f"{ROOT / 'benchmarks' / 'results.json'} charts",
    "compare_commits.py": f"{ROOT} {ROOT} --only linear",
    "core_split.py": "--seconds 0.2 --workloads hyperteacher",
    "dense_products.py": "--seconds 0.01",
    "generators.py": "hyperteacher --scales tiny --seconds 0.01",
    "growth.py": "memory --seconds 0.01",
    "kernel_choice.py": "--attentions linear --lengths 64 --widths 16 --seconds 0.01",
    "output_scale.py": "--lengths 32 --steps 2 --rates 0.001 --out scale.jsonl",
    "processor_share.py": f"{ROOT} --steps 1 --only fuzzy_logic/linear",
    "sweep_500.py": "--runs 3",
}
ELSEWHERE = {"language_model.py", "foreign.py"}  # the sizes of the papers; tests/test_foreign.py


def test_every_script_is_run_here():
    assert {path.name for path in (ROOT / "benchmarks").glob("*.py")} == SMALL.keys() | ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("script", SMALL)
def test_scripts_run(script, tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *SMALL[script].split()]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip()
