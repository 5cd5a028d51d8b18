"""Whole sweeps that are killed in the middle, through every engine. Slow."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recombine.engines import EngineFlags, train_all
from recombine.models import MLPConfig
from recombine.run import RunConfig, train_run
from recombine.sweep.plan import load_plan
from recombine.train import TrainingConfig
from slurm_node import slurm_node, why_not
from sweep_cases import BASE, FILE, wait_until

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
