"""The real `torchrun`: a killed process ends the others with one line, and any number of processes goes on.

`pytest -m slow tests/test_torchrun.py`. What needs no `torchrun` is in test_parallel.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recombine.cli.main import run as run_verb

pytestmark = pytest.mark.slow

# Process 1 kills itself in its 70th step if there is a file `death`.
MODEL = """
import os, pathlib, signal
from torch import nn

class Mortal(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(task.input_dim, 8), nn.Linear(8, task.output_dim)])
        self.death, self.steps = pathlib.Path(__file__).with_name("death"), 0

    def forward(self, inputs):
        self.steps += self.training
        if self.steps == 70 and os.environ.get("RANK") == "1" and self.death.exists():
            self.death.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers[1](self.layers[0](inputs).relu())
"""


def describe_run(folder: Path) -> list[str]:
    settings = ["--scale", "tiny", "--steps", "120", "--batch-size", "8", "--evaluation-instances", "50"]
    return ["train", "hyperteacher", "--model", f"{folder / 'mortal.py'}:Mortal", *settings]


def launch(folder: Path, out: str, size: int, *flags: str) -> subprocess.CompletedProcess[str]:
    """Train the run in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command += ["-m", "recombine", *describe_run(folder), "--out", str(folder / out), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def read_losses(out: Path) -> list[tuple[int, float]]:
    (path,) = out.glob("*/metrics.jsonl")
    rows = map(json.loads, path.read_text().splitlines())
    return [(row["step"], row["loss"]) for row in rows]


@pytest.mark.parametrize(("flags", "resumed_with"), [((), 3), (("--shard",), 3), (("--shard",), 1)])
def test_a_killed_process_and_another_number_of_processes(flags, resumed_with, tmp_path, capsys):
    (tmp_path / "mortal.py").write_text(MODEL)
    assert run_verb([*describe_run(tmp_path), "--out", str(tmp_path / "alone")]) == 0
    (tmp_path / "death").touch()
    killed = launch(tmp_path, "together", 2, *flags)
    assert killed.returncode == 1
    assert not (tmp_path / "death").exists(), "no process was killed"
    reported = [line for line in killed.stderr.splitlines() if "another process of this training ended" in line]
    assert len(reported) == 1, killed.stderr
    assert "run the same command again to go on, with any number of processes" in reported[0]
    (run,) = (tmp_path / "together").iterdir()
    assert json.loads((run / "checkpoint.json").read_text())["step"] == 50
    assert not (run / "result.json").exists()
    if resumed_with == 1:
        assert run_verb([*describe_run(tmp_path), "--out", str(tmp_path / "together")]) == 0
    else:
        resumed = launch(tmp_path, "together", resumed_with, *flags)
        assert resumed.returncode == 0, resumed.stderr
    assert json.loads((run / "environment.json").read_text())["num_processes"] == resumed_with
    ours, theirs = (read_losses(tmp_path / name) for name in ("together", "alone"))
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in theirs], rel=2e-5)
