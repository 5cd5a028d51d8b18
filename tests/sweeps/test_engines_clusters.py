"""Engines: lost workers, missing packages, clusters that do not answer, folders that are not shared."""

import json
import os
import sys
import threading
from dataclasses import replace
from types import ModuleType

import pytest

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.sweeps import slurm as slurm_engine
from recombine.sweeps.engine import Job
from recombine.sweeps.local import LocalEngine, train_job
from recombine.sweeps.run import EngineOptions, split_cores, train_all
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.config import default_run
from recombine.training.run import open_directory
from sweep_cases import BASE, FILE

MORTAL = """
import os, pathlib, signal
from torch import nn

class Mortal(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.layer = nn.Linear(task.input_dim, task.output_dim)
        deaths = pathlib.Path(__file__).with_name(f"deaths-{task.seed}")
        left = int(deaths.read_text()) if deaths.exists() else 0
        if left:
            deaths.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)

    def forward(self, inputs):
        return self.layer(inputs)
"""


@pytest.fixture
def mortal(tmp_path, monkeypatch):
    """A run whose process dies as often as the file `deaths-SEED` says."""
    path = tmp_path / "mortal.py"
    path.write_text(MORTAL)
    run = default_run("hyperteacher", "tiny", f"{path}:Mortal")
    return replace(run, task=BASE.task, training=BASE.training)


def with_seed(run, seed):
    return replace(run, task=replace(run.task, seed=seed))


def job_for(run, out, **choices):
    values = {"key": run.directory_name, "config": run.as_dict(), "code": (), "out": str(out), "device": "cpu"}
    return Job(**{**values, "threads": 1, "mark": "", **choices})


@pytest.mark.slow
def test_a_dead_worker_does_not_stop_the_others(mortal, tmp_path):
    (tmp_path / "deaths-1").write_text("1")
    (tmp_path / "deaths-2").write_text("9")
    runs = [with_seed(mortal, seed) for seed in range(3)]
    engine = LocalEngine(jobs=2, threads=1)
    outcomes = {outcome.key: outcome for outcome in train_all(runs, engine, out=tmp_path / "out")}
    assert [outcomes[run.directory_name].kind for run in runs] == [None, None, "lost"]
    assert outcomes[runs[2].directory_name].error == "the worker process died, 2 times"
    failure = json.loads((tmp_path / "out" / runs[2].directory_name / "failure.json").read_text())
    assert failure["kind"] == "lost"
    assert (tmp_path / "deaths-2").read_text() == "7"
    assert all((tmp_path / "out" / run.directory_name / "result.json").exists() for run in runs[:2])


def test_a_run_that_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(Hyperteacher, "evaluation_instances", 100)
    run = open_directory(BASE, tmp_path)
    held, release = threading.Event(), threading.Event()

    def hold():
        with run.lock():
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    threading.Timer(0.7, release.set).start()
    assert train_job(job_for(BASE, tmp_path)).kind is None
    assert release.is_set()
    thread.join()


def test_a_folder_that_is_not_shared(tmp_path, capsys, monkeypatch):
    """The worker does not find what the sweep wrote: one line, and nothing is written into the wrong folder."""
    outcome = train_job(job_for(BASE, tmp_path / "other", mark=".shared-x"))
    assert outcome.kind == "folder"
    assert "is not the folder of the sweep: expected a folder that all workers share" in outcome.error
    assert not (tmp_path / "other").exists()

    class Elsewhere(LocalEngine):
        def train(self, jobs):
            yield from (train_job(replace(job, out=str(tmp_path / "other"))) for job in jobs)

    monkeypatch.setattr(EngineOptions, "open_engine", lambda self, num_runs: Elsewhere(jobs=1, threads=1))
    (tmp_path / "many.py").write_text(FILE)
    assert run_verb(["sweep", str(tmp_path / "many.py"), "--out", str(tmp_path / "out")]) == 2
    assert "expected a folder that all workers share" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "scontrol", "message"),
    [
        ("ray --address 127.0.0.1:1", "", "the cluster at 127.0.0.1:1 does not answer"),
        ("ray --address a:b", "", "address is 'a:b': expected auto, HOST:PORT"),
        ("slurm", "", "there is no SLURM here: expected sbatch on the path"),
        ("slurm", "echo Slurmctld is DOWN", "SLURM does not answer (Slurmctld is DOWN)"),
        ("slurm", "exec /bin/sleep 30", "SLURM does not answer (no answer): expected an answer within 0.2 seconds"),
    ],
)
def test_a_sweep_on_a_cluster_that_does_not_answer(flags, scontrol, message, tmp_path, monkeypatch, capsys):
    """One line and exit code 2, before anything is written."""
    for module in ("ray", "slurm"):
        monkeypatch.setattr(f"recombine.sweeps.{module}.CONNECT_TIMEOUT", 0.2)
    packages = {name: ModuleType(name) for name in ("ray", "submitit")}  # they need not be installed
    vars(packages["ray"])["is_initialized"] = lambda: False
    for name, package in packages.items():
        monkeypatch.setitem(sys.modules, name, package)
    for name in ("sbatch", "scontrol") if scontrol else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{scontrol}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "many.py").write_text(FILE)
    command = ["sweep", str(tmp_path / "many.py"), "--out", str(tmp_path / "out"), "--engine", *flags.split()]
    assert run_verb(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


class Element:
    def __init__(self, number):
        self.job_id = f"7_{number}"


def test_jobs_that_left_the_queue_are_dead(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_engine, "QUEUE_SECONDS", 0.0)
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '7_0\\n9_1\\n'\n")
    squeue.chmod(0o755)
    queue = slurm_engine.Queue()
    elements = [Element(0), Element(1)]
    assert queue.find_dead(elements) == set()  # its result may only be late
    assert queue.find_dead(elements) == {"7_1"}
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert queue.find_dead(elements) == set()  # no answer says nothing
    monkeypatch.setattr(slurm_engine, "SQUEUE_TIMEOUT", -1.0)
    with pytest.raises(InputError, match="SLURM has not answered squeue"):
        queue.find_dead(elements)


def test_cores_are_split_without_oversubscription(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("RECOMBINE_JOBS", raising=False)
    monkeypatch.setattr("recombine.sweeps.run.count_cores", lambda: 8)
    assert split_cores(100) == (8, 1)
    assert split_cores(3) == (3, 2)
    assert split_cores(1) == (1, 8)
    assert split_cores(100, jobs=2) == (2, 4)
    assert split_cores(100, threads=4) == (2, 4)
    assert split_cores(100, jobs=3, threads=2) == (3, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert split_cores(100) == (4, 2)  # respected
    assert split_cores(100, threads=1) == (8, 1)  # overridden on purpose
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(InputError, match="OMP_NUM_THREADS is 'many': expected a whole number"):
        split_cores(100)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("RECOMBINE_JOBS", "1")
    assert split_cores(100) == (1, 2)
    with pytest.raises(InputError, match="jobs is 0: expected"):
        EngineOptions(jobs=0).open_engine(3)
