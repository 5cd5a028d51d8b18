"""Engines: lost workers, missing packages, clusters that do not answer, folders that are not shared. Slowly: whole sweeps
that are killed in the middle, through every engine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recombine.cli import run as run_verb
from recombine.engines import EngineFlags, LocalEngine, split_cores, train_all
from recombine.engines import ray as ray_engine
from recombine.engines import slurm as slurm_engine
from recombine.engines.base import Job, import_extra
from recombine.engines.worker import train_job
from recombine.errors import InputError
from recombine.models import MLPConfig
from recombine.run import RunConfig, default_run, train_run
from recombine.run.execute import open_directory
from recombine.sweep.plan import load_plan
from recombine.tasks import Hyperteacher
from recombine.train import TrainingConfig
from slurm_node import slurm_node, why_not
from test_sweep import BASE, FILE, wait_until

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


def test_submitit_resumes_a_job_that_died(mortal, tmp_path):
    pytest.importorskip("submitit")
    (tmp_path / "deaths-0").write_text("1")
    engine = EngineFlags(engine="submitit", jobs=1, threads=1).open_engine(1)
    assert engine.describe() == "processes started by submitit, at most 1 at a time, each with 1 thread"
    (outcome,) = train_all([with_seed(mortal, 0)], engine, out=tmp_path / "out")
    assert (outcome.kind, outcome.error) == (None, "")
    assert (Path(outcome.path) / "result.json").exists()


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

    monkeypatch.setattr(EngineFlags, "open_engine", lambda self, num_runs: Elsewhere(jobs=1, threads=1))
    (tmp_path / "many.py").write_text(FILE)
    assert run_verb(["sweep", str(tmp_path / "many.py"), "--out", str(tmp_path / "out")]) == 2
    assert "expected a folder that all workers share" in capsys.readouterr().err


def test_an_engine_that_is_not_installed_names_its_extra(tmp_path, capsys, monkeypatch):
    (tmp_path / "many.py").write_text(FILE)
    for engine, package, extra in (
        ("ray", "ray", "ray"),
        ("slurm", "submitit", "slurm"),
        ("submitit", "submitit", "slurm"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        assert run_verb(["sweep", str(tmp_path / "many.py"), "--engine", engine, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert f"needs the package {package}: expected it installed, pip install 'recombine[{extra}]'" in error
    assert not (tmp_path / "out").exists()
    assert import_extra("json", "json") is json


def test_clusters_that_do_not_answer(tmp_path, monkeypatch):
    with pytest.raises(
        InputError, match=r"the cluster at 127\.0\.0\.1:1 does not answer .*: expected an answer within 2 s"
    ):
        ray_engine.check_answers("127.0.0.1:1", 2.0)
    with pytest.raises(InputError, match="address is 'a:b': expected auto, HOST:PORT"):
        ray_engine.check_answers("a:b", 2.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no SLURM here: expected sbatch on the path"):
        slurm_engine.check_answers(2.0)
    for name, script in (("sbatch", "exit 0"), ("scontrol", "echo Slurmctld is DOWN"), ("squeue", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(InputError, match=r"SLURM does not answer \(Slurmctld is DOWN\)"):
        slurm_engine.check_answers(2.0)
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    with pytest.raises(InputError, match=r"SLURM does not answer \(no answer\): expected an answer within 0.2 seconds"):
        slurm_engine.check_answers(0.2)


class Element:
    def __init__(self, number):
        self.job_id = f"7_{number}"


def test_jobs_that_left_the_queue_are_dead(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_engine, "QUEUE_SECONDS", 0.0)
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '7_0\\n9_1\\n'\n")
    squeue.chmod(0o755)
    queue = slurm_engine.Queue(10.0)
    elements = [Element(0), Element(1)]
    assert queue.find_dead(elements) == set()  # its result may only be late
    assert queue.find_dead(elements) == {"7_1"}
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert queue.find_dead(elements) == set()  # no answer says nothing
    monkeypatch.setattr(slurm_engine, "SILENCE_SECONDS", -1.0)
    with pytest.raises(InputError, match="SLURM has not answered squeue"):
        queue.find_dead(elements)


def test_cores_are_split_without_oversubscription(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("RECOMBINE_JOBS", raising=False)
    monkeypatch.setattr("recombine.engines.choose.count_cores", lambda: 8)
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
        EngineFlags(jobs=0).open_engine(3)


def test_a_job_sets_its_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(Hyperteacher, "evaluation_instances", 100)
    before = torch.get_num_threads()
    try:
        outcome = train_job(job_for(BASE, tmp_path, threads=3))
        assert json.loads((Path(outcome.path) / "environment.json").read_text())["num_threads"] == 3
    finally:
        torch.set_num_threads(before)


# Slow: whole sweeps through every engine, killed in the middle.

TWELVE = FILE.replace("steps=10", "steps=300")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Twelve runs, trained one after the other in this process with one thread."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "many.py").write_text(TWELVE)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for record in load_plan(str(folder / "many.py")).records:
            train_run(record.config, out=folder / "out")
    finally:
        torch.set_num_threads(before)
    return folder / "out"


def results_of(folder):
    return {path.parent.name: path for path in folder.glob("*/result.json")}


def assert_equal(folder, other):
    """The same runs, with the same scores and the same bits."""
    assert set(results_of(folder)) == set(results_of(other))
    assert len(results_of(folder)) == 12
    for key, path in results_of(folder).items():
        one, two = (json.loads((each / key / "result.json").read_text()) for each in (folder, other))
        assert one["scores"] == two["scores"]
        assert one["composition_sums"] == two["composition_sums"]
        ours, theirs = (load_file(each / key / "checkpoint.safetensors") for each in (folder, other))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), path


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray", "submitit", "slurm"])
def test_a_sweep_killed_in_the_middle_ends_as_if_undisturbed(engine, undisturbed, tmp_path):
    if engine == "slurm" and (reason := why_not()):
        pytest.skip(reason)
    pytest.importorskip({"ray": "ray", "slurm": "submitit", "submitit": "submitit"}.get(engine, "torch"))
    if engine == "slurm":
        with slurm_node() as config:
            kill_and_restart(engine, undisturbed, tmp_path, {"SLURM_CONF": config})
    else:
        kill_and_restart(engine, undisturbed, tmp_path, {})


def kill_and_restart(engine, undisturbed, tmp_path, variables):
    (tmp_path / "many.py").write_text(TWELVE)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "recombine", "sweep", str(tmp_path / "many.py"), "--out", str(out)]
    command += ["--engine", engine, "--jobs", "2", "--threads", "1"]
    environment = {**os.environ, **variables}
    sweep = subprocess.Popen(command, env=environment)
    try:
        wait_until(lambda: len(results_of(out)) >= 4, 600)
    finally:
        sweep.send_signal(signal.SIGKILL)
        sweep.wait()
    before = {key: path.stat().st_mtime_ns for key, path in results_of(out).items()}
    assert 4 <= len(before) < 12
    sweep = subprocess.Popen(command, env=environment)
    wait_until(lambda: len(results_of(out)) > len(before), 600)
    kill_a_worker(out)
    assert sweep.wait(900) == 0
    after = {key: path.stat().st_mtime_ns for key, path in results_of(out).items()}
    assert {key: after[key] for key in before} == before  # no finished run is repeated
    assert_equal(out, undisturbed)


def kill_a_worker(out):
    """Kill the process that trains a run, if one is training at this moment."""
    for path in (out / ".running").glob("*.json"):
        try:
            process = json.loads(path.read_text())["process"]
            if time.time() - path.stat().st_mtime < 10 and b"recombine" in Path(f"/proc/{process}/maps").read_bytes():
                os.kill(process, signal.SIGKILL)
                return
        except (OSError, ValueError):
            continue


@pytest.mark.slow
def test_ray_starts_a_lost_task_again(mortal, tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "deaths-1").write_text("1")
    runs = [with_seed(mortal, seed) for seed in range(2)]
    engine = EngineFlags(engine="ray", jobs=2, threads=1).open_engine(2)
    assert {outcome.kind for outcome in train_all(runs, engine, out=tmp_path / "out")} == {None}
    with pytest.raises(InputError, match="each run needs 1 GPU, the cluster has 0"):
        list(train_all(runs, EngineFlags(engine="ray", gpus=1, threads=1).open_engine(2), out=tmp_path / "out"))


@pytest.mark.slow
def test_slurm_requeues_at_the_time_limit(tmp_path):
    """A job that is told that its time is over goes back into the queue and continues from its checkpoint."""
    if reason := why_not():
        pytest.skip(reason)
    pytest.importorskip("submitit")
    long = RunConfig(task=BASE.task, model=MLPConfig(num_layers=1, hidden_dim=4), training=TrainingConfig(steps=20_000))
    with slurm_node() as config, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", config)
        engine = EngineFlags(engine="slurm", threads=1, time_limit=60).open_engine(1)
        outcomes = train_all([long], engine, out=tmp_path)
        thread_result = []
        thread = threading.Thread(target=lambda: thread_result.extend(outcomes))
        thread.start()
        checkpoint = tmp_path / long.directory_name / "checkpoint.json"
        wait_until(checkpoint.exists, 300)
        subprocess.run(["scancel", "--signal", "USR2", "--user", "root"], check=True)
        thread.join(900)
        assert [outcome.kind for outcome in thread_result] == [None]
        logs = "".join(path.read_text() for path in (tmp_path / ".submitit").glob("*_log.*"))
        assert "Requeued job" in logs or "requeue" in logs.lower()
