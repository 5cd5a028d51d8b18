"""Whole sweeps through every engine, killed in the middle: nothing is lost, nothing is trained twice, the bits are the same.

`pytest -m slow tests/test_engines_killed.py` takes some minutes. Engines that are not installed here are skipped.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recombine.foundation.errors import InputError
from recombine.sweeps import Record
from recombine.sweeps.plan import load_plan
from recombine.sweeps.ray import check_answers
from recombine.sweeps.run import EngineOptions, train_all
from recombine.training.run import train_run
from slurm_node import free_port, slurm_node, why_not

pytestmark = pytest.mark.slow

STEPS, DIES_AT, CHECKPOINT = 300, 120, 100  # a checkpoint is written every 50 steps

# A process that trains a seed with a file `death-SEED` removes the file after some steps and kills itself; or, if the file
# says so, it hangs until someone ends it. Every process leaves a file that says how many steps it has begun.
FILE = f"""
import os, pathlib, signal, time
from dataclasses import replace
from torch import nn
from recombine import Hyperteacher, TrainingConfig, default_run, grid, over_seeds

HERE = pathlib.Path(__file__).parent

class Mortal(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.layer = nn.Linear(task.input_dim, task.output_dim)
        self.death, self.steps = HERE / f"death-{{task.seed}}", 0
        self.begun = HERE / f"begun-{{task.seed}}-{{os.getpid()}}"

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            self.begun.write_text(str(self.steps))
            if self.steps == {DIES_AT} and self.death.exists():
                hangs = self.death.read_text() == "hang"
                self.death.unlink()
                time.sleep(3600) if hangs else os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(inputs)

def runs():
    base = default_run("hyperteacher", "tiny", f"{{__file__}}:Mortal")
    task = Hyperteacher(num_modules=4, num_active=2, support="random")
    base = replace(base, task=task, training=TrainingConfig(steps={STEPS}, batch_size=4))
    return over_seeds(grid(base, learning_rate=(1e-3, 3e-3)), seeds=range(6))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The file of the sweep. All tests share it, because its path and contents are part of what is trained."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "killed.py").write_text(FILE)
    return folder


def train_undisturbed(folder: Path, records: Sequence[Record]) -> Path:
    """Train runs one after the other in this process with one thread; those of another test are there already."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for record in records:
            train_run(record.config, out=folder / "undisturbed")
    finally:
        torch.set_num_threads(before)
    return folder / "undisturbed"


@pytest.fixture(params=["local", "ray", "slurm"])
def engine(request, monkeypatch) -> Iterator[str]:
    """The name of an engine that works here."""
    pytest.importorskip({"local": "torch", "ray": "ray", "slurm": "submitit"}[request.param])
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else Ray's workers starve where other work goes on
    if request.param != "slurm":
        yield request.param
        return
    if reason := why_not():
        pytest.skip(reason)
    with slurm_node() as config:
        monkeypatch.setenv("SLURM_CONF", config)
        yield request.param


def results_of(out: Path) -> dict[str, int]:
    """When the result of each finished run was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/result.json")}


def assert_equal(out: Path, other: Path, num_runs: int = 12) -> None:
    """Runs with the same scores, the same losses and the same bits as other ones."""
    assert len(results_of(out)) == num_runs
    assert set(results_of(out)) <= set(results_of(other))
    for key in results_of(out):
        one, two = (json.loads((each / key / "result.json").read_text()) for each in (out, other))
        assert one["scores"] == two["scores"]
        assert one["composition_sums"] == two["composition_sums"]
        assert read_losses(out / key) == read_losses(other / key)
        ours, theirs = (load_file(each / key / "checkpoint.safetensors") for each in (out, other))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), key


def read_losses(run: Path) -> list[tuple[int, float]]:
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(row["step"], row["loss"]) for row in rows]


def forget_processes(folder: Path) -> None:
    for path in folder.glob("begun-*"):
        path.unlink()


def steps_of_processes(folder: Path, seed: int) -> list[int]:
    """How many steps each process has begun that trained a seed; a process may train both of its learning rates."""
    return sorted(
        int(path.read_text() or 0) for path in folder.glob(f"begun-{seed}-*")
    )  # a kill may leave an empty file


def test_a_killed_sweep_and_a_killed_worker_change_nothing(engine, folder, tmp_path):
    """SIGKILL to the sweep after four runs; started again, SIGKILL to a worker in the middle of a run."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "recombine", "sweep", str(folder / "killed.py"), "--out", str(out)]
    command += ["--engine", engine, "--jobs", "2", "--threads", "1"]
    sweep = subprocess.Popen(command)
    try:
        while len(results_of(out)) < 4:
            assert sweep.poll() is None, "the sweep ended by itself"
            time.sleep(0.01)
    finally:
        sweep.send_signal(signal.SIGKILL)
        sweep.wait()
    before = results_of(out)
    assert 4 <= len(before) < 12
    forget_processes(folder)
    dying = 5  # the last run has this seed
    (folder / f"death-{dying}").touch()
    assert subprocess.run(command, check=False).returncode == 0
    assert not (folder / f"death-{dying}").exists(), "no process was killed"
    after = results_of(out)
    assert {key: after[key] for key in before} == before  # no finished run is trained again
    assert DIES_AT in steps_of_processes(folder, dying)
    forget_processes(folder)
    assert_equal(out, train_undisturbed(folder, load_plan(str(folder / "killed.py")).records))


def test_a_lost_task_resumes_from_its_checkpoint(engine, folder, tmp_path):
    """A process killed in the middle of a run; the next one trains only what the checkpoint does not hold."""
    forget_processes(folder)
    (record, *_) = load_plan(str(folder / "killed.py")).records
    (folder / f"death-{record.seed}").touch()
    trained = EngineOptions(engine=engine, jobs=1, threads=1).open_engine(1)
    (outcome,) = train_all([record.config], trained, out=tmp_path / "out")
    assert (outcome.kind, outcome.error) == (None, "")
    assert steps_of_processes(folder, record.seed) == [DIES_AT, STEPS - CHECKPOINT]
    assert_equal(tmp_path / "out", train_undisturbed(folder, [record]), 1)


@pytest.mark.parametrize("engine", ["slurm"], indirect=True)
def test_slurm_requeues_a_run_at_its_time_limit(engine, folder, tmp_path):
    """A run that hangs reaches the limit, goes back into the queue and continues from its checkpoint."""
    forget_processes(folder)
    (record, *_) = load_plan(str(folder / "killed.py")).records
    (folder / f"death-{record.seed}").write_text("hang")
    limited = EngineOptions(engine=engine, threads=1, time_limit=5).open_engine(1)  # submitit is told 90 s before
    (outcome,) = train_all([record.config], limited, out=tmp_path / "out")
    assert (outcome.kind, outcome.error) == (None, "")
    assert {DIES_AT, STEPS - CHECKPOINT} <= set(steps_of_processes(folder, record.seed))
    logs = "".join(path.read_text() for path in (tmp_path / "out" / ".submitit").glob("*_log.*"))
    assert "DUE TO JOB REQUEUE" in logs
    assert_equal(tmp_path / "out", train_undisturbed(folder, [record]), 1)


def test_ray_without_the_resources():
    pytest.importorskip("ray")
    engine = EngineOptions(engine="ray", gpus=1, threads=1).open_engine(2)
    with pytest.raises(InputError, match="each run needs 1 GPU, the cluster has 0"):
        list(engine.train([]))


def test_a_cluster_of_ray_that_runs_already(folder, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", str(port)]
    command += ["--num-cpus", "1", "--include-dashboard", "false", "--temp-dir", tempfile.mkdtemp(prefix="ray-")]
    (record, *_) = load_plan(str(folder / "killed.py")).records
    with open(tmp_path / "log", "w") as log:
        cluster = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_ray(f"127.0.0.1:{port}", cluster)
        engine = EngineOptions(engine="ray", address=f"127.0.0.1:{port}", threads=1).open_engine(1)
        assert [outcome.kind for outcome in train_all([record.config], engine, out=tmp_path / "out")] == [None]
    finally:
        cluster.terminate()
        cluster.wait()


def wait_for_ray(address: str, cluster: subprocess.Popen) -> None:
    while cluster.poll() is None:
        try:
            return check_answers(address)
        except InputError:
            time.sleep(1)
    raise AssertionError("Ray did not start")
