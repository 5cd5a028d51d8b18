"""A task, a model, an attention and an experiment are one file each (see docs/architecture.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import recombine

SOURCE = Path(recombine.__file__).parent

TASK = '''"""A task in one file of the package."""
from dataclasses import dataclass
from typing import ClassVar

from recombine.tasks.fuzzy_logic import FuzzyLogic


@dataclass(frozen=True, kw_only=True)
class Brand(FuzzyLogic):
    name: ClassVar[str] = "brand_new"
    summary: ClassVar[str] = "a task that one file added"
'''
MODEL = '''"""A model in one file of the package."""
from dataclasses import dataclass
from typing import ClassVar

from recombine.models.mlp import MLPConfig


@dataclass(frozen=True, kw_only=True)
class BrandConfig(MLPConfig):
    kind: ClassVar[str] = "brand_new"
'''
EXPERIMENT = '''"""An experiment in one file."""
from recombine import default_run
from recombine.sweeps import Record
from recombine_papers.base import Experiment


class Brand(Experiment):
    name = "brand-new"
    question = "Does one file add an experiment?"
    metric = "r2"
    compared = "seed"

    def records(self, scale):
        yield Record(settings={"model": "hyla"}, config=default_run("fuzzy_logic", scale))
'''
ATTENTION = '"hyla": ("rms_head", "hyper_relu"),'


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that a test may change."""
    shutil.copytree(SOURCE, tmp_path / "recombine", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "recombine"


def run(package: Path, program: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_file_adds_a_task_a_model_and_an_experiment(package):
    (package / "tasks" / "brand.py").write_text(TASK)
    (package / "models" / "brand.py").write_text(MODEL)
    experiment = package.parent / "brand.py"
    experiment.write_text(EXPERIMENT)
    out = package.parent / "runs"
    shown = run(
        package,
        "from recombine.cli import main as cli\n"
        "from recombine.models.base import find_model, find_task\n"
        "print(find_task('brand-new').summary, find_model('brand_new').__name__)\n"
        "assert cli.run(['show', 'brand-new', '--num-examples', '3']) == 0\n"
        f"few = ['--steps', '3', '--out', {str(out)!r}]\n"
        "less = [*few, '--batch-size', '4', '--evaluation-instances', '20', '-q']\n"
        "assert cli.run(['train', 'brand-new', '--scale', 'tiny', *less]) == 0\n"
        "assert cli.run(['train', 'hyperteacher', '--scale', 'tiny', '--model', 'brand_new', *less]) == 0\n"
        "find_task('fuzzy_logic').evaluation_instances = 20\n"
        f"brand = {str(experiment) + ':Brand'!r}\n"
        "assert cli.run(['reproduce', brand, '--scale', 'tiny', '--jobs', '1', *few]) == 0\n",
    )
    assert "a task that one file added BrandConfig" in shown
    assert "Does one file add an experiment?" in shown
    assert "f =" in shown
    configs = [json.loads((result.parent / "config.json").read_text()) for result in out.glob("*/result.json")]
    assert sorted((config["task"]["name"], config["model"]["kind"]) for config in configs) == [
        ("brand_new", "transformer"),
        ("fuzzy_logic", "transformer"),
        ("hyperteacher", "brand_new"),
    ]


def test_one_file_adds_an_attention(package):
    file = package / "attention" / "layer.py"
    text = file.read_text()
    assert text.count(ATTENTION) == 1
    text = text.replace(ATTENTION, f'{ATTENTION}\n    "brand_new": ("softmax", "hyper_linear"),')
    file.write_text(text.replace('    "hyla",\n', '    "hyla",\n    "brand_new",\n', 1))
    shown = run(
        package,
        "import torch\nfrom recombine import Attention, TransformerConfig\n"
        "layer = Attention(8, num_heads=2, kqv_dim=4, attention=TransformerConfig(attention='brand_new').attention)\n"
        "print(layer(torch.ones(1, 3, 8))[0].shape)\n"
        "from recombine.cli import main as cli\n"
        "few = ['--steps', '3', '--batch-size', '4', '--evaluation-instances', '20', '-q']\n"
        f"few += ['--out', {str(package.parent / 'runs')!r}]\n"
        "assert cli.run(['train', 'fuzzy-logic', '--scale', 'tiny', '--attention', 'brand_new', *few]) == 0\n",
    )
    assert "torch.Size([1, 3, 8])" in shown
    assert [path.name.rpartition("-")[0] for path in (package.parent / "runs").iterdir()] == ["fuzzy-logic-brand-new"]
