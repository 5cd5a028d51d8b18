"""Several runs at a time: the same results as one by one, and errors that arrive."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.mlp import MLPConfig
from recombine.sweeps.run import EngineOptions, train_runs
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run
from recombine.training.trainer import DivergedError
from sweep_cases import wait_until

CONFIG = RunConfig(
    task=Hyperteacher(num_modules=4, num_active=2, support="random"),
    model=MLPConfig(num_layers=1, hidden_dim=8),
    training=TrainingConfig(steps=20, batch_size=8),
)
CONFIGS = [replace(CONFIG, task=replace(CONFIG.task, seed=seed)) for seed in range(3)]


AT_ONCE = EngineOptions(jobs=2)


def test_runs_at_once_equal_runs_one_by_one(tmp_path, capsys):
    runs = train_runs(CONFIGS, engine=AT_ONCE, out=tmp_path / "at once")
    assert "2 processes on this machine, each with 1 thread" in capsys.readouterr().err
    assert [run.config["task"]["seed"] for run in runs] == [0, 1, 2]  # in the order asked for, whichever ends first
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run, config in zip(runs, CONFIGS, strict=True):
            alone = train_run(config, out=tmp_path / "alone")
            assert alone.read_json("result.json")["scores"] == run.read_json("result.json")["scores"]
            ours, theirs = alone.load_checkpoint()[0], run.load_checkpoint()[0]
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    finally:
        torch.set_num_threads(threads)
    again = train_runs(CONFIGS, engine=AT_ONCE, out=tmp_path / "at once")
    assert [run.path for run in again] == [run.path for run in runs]
    assert "3 of 3 runs" in capsys.readouterr().err


def test_an_error_in_a_run_arrives(tmp_path):
    with pytest.raises(InputError, match="device 'abacus' is not available"):
        train_runs(CONFIGS, engine=AT_ONCE, out=tmp_path, device="abacus")
    with pytest.raises(InputError, match="jobs"):
        train_runs(CONFIGS, engine=EngineOptions(jobs=0), out=tmp_path)


def test_one_that_fails_does_not_stop_the_others(tmp_path):
    bad = replace(CONFIG, training=replace(CONFIG.training, learning_rate=1e30))
    with pytest.raises(DivergedError, match="1 of 4 runs failed; training diverged"):
        train_runs([bad, *CONFIGS], engine=AT_ONCE, out=tmp_path, quiet=True)
    assert len(list(tmp_path.glob("*/result.json"))) == 3


def test_workers_end_with_their_parent(tmp_path):
    """Killed without warning: the lock of each run is free again."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from dataclasses import replace\n"
        "from test_engines import AT_ONCE, CONFIGS, train_runs\n"
        "if __name__ == '__main__':\n"
        "    long = [replace(each, training=replace(each.training, steps=10**6)) for each in CONFIGS]\n"
        "    train_runs(long, engine=AT_ONCE, out=sys.argv[2])\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, script, Path(__file__).parent, tmp_path / "runs"])
    try:
        wait_until(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 2)
    finally:
        parent.kill()
        parent.wait()
    runs = [RunDirectory.open(path.parent) for path in tmp_path.glob("runs/*/metrics.jsonl")]
    wait_until(lambda: all(map(is_free, runs)))


def is_free(run):
    try:
        with run.lock():
            return True
    except InputError:
        return False
