"""Sweeps: nothing is trained twice, failures are kept, results are written."""

import json
from pathlib import Path

import pytest

from recombine import over_seeds
from recombine.cli.main import run as run_verb
from recombine.sweeps.engine import Engine
from recombine.sweeps.local import train_job
from recombine.sweeps.plan import load_plan, make_plan
from recombine.sweeps.run import find_work, run_sweep
from recombine.sweeps.status import SweepReader
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.directory import RunDirectory
from sweep_cases import BASE, write_sweep


class HereEngine(Engine):
    """Trains in this process, so that tests are quick."""

    name = "local"
    threads = 1

    def __init__(self):
        self.trained = []

    def describe(self):
        return "here"

    def train(self, jobs):
        for job in jobs:
            self.trained.append(job.key)
            yield train_job(job)


@pytest.fixture
def here(monkeypatch):
    """Every engine is one in this process."""
    engine = HereEngine()
    monkeypatch.setattr("recombine.sweeps.run.EngineOptions.open_engine", lambda self, num_runs: engine)
    monkeypatch.setattr(Hyperteacher, "evaluation_instances", 200)
    return engine


def test_a_sweep_trains_each_run_once(tmp_path, here, capsys):
    file, out = write_sweep(tmp_path), tmp_path / "out"
    command = ["sweep", f"{file}:twice", "--out", str(out)]
    assert run_verb(command) == 0
    shown = capsys.readouterr()
    assert "12 of the listed runs have the hash of an earlier one and are run once: hidden dim 4" in shown.err
    assert "12 runs: 0 finished, 12 to train" in shown.err
    assert "12/12 hidden dim 8, learning rate 0.003, seed 2: R² test" in shown.err
    assert "Best of the grid" in shown.out
    assert len(here.trained) == len(set(here.trained)) == 12
    assert run_verb(["sweep", str(file), "--out", str(out), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["finished"], value["failed"], value["running"], value["waiting"]) == (12, 0, 0, 0)
    assert len(here.trained) == 12  # nothing is trained again
    assert run_verb(["sweep", "status", str(out)]) == 0
    assert "12 runs: 0 running, 12 finished, 0 failed, 0 waiting · best on test so far: test" in capsys.readouterr().out
    check_files(out)


def check_files(out: Path) -> None:
    """Both files hold the same."""
    import pandas

    csv = pandas.read_csv(out / "results.csv", float_precision="round_trip")  # not so by default in older versions
    frames = [pandas.read_parquet(out / "results.parquet"), csv]
    for frame in frames:
        assert len(frame) == 12
        assert {"run", "hidden_dim", "learning_rate", "seed", "state", "test_r2", "test_r2_low", "ood_r2"} <= set(
            frame.columns
        )
        assert frame.groupby("hidden_dim").test_r2.count().to_dict() == {4: 6, 8: 6}
        assert frame.error.isna().all()
    assert frames[0].test_r2.tolist() == frames[1].test_r2.tolist()
    run = frames[0].iloc[0]
    result = json.loads((out / run.run / "result.json").read_text())
    assert result["scores"]["ood"]["r2"]["value"] == run.ood_r2


def test_failures_are_kept_and_retried(tmp_path, here, capsys):
    file, out = write_sweep(tmp_path), tmp_path / "out"
    command = ["sweep", f"{file}:diverging", "--out", str(out)]
    assert run_verb(command) == 1
    shown = capsys.readouterr()
    assert "failed: training diverged before step 10" in shown.err
    assert "1 failed" in shown.out
    (path,) = out.glob("*/failure.json")
    failure = json.loads(path.read_text())
    assert failure["kind"] == "diverged"
    assert "training diverged" in failure["error"]
    assert run_verb(command) == 1
    assert "1 failed earlier (--retry trains them again)" in capsys.readouterr().err
    assert len(here.trained) == 2
    assert run_verb([*command, "--retry"]) == 1
    assert len(here.trained) == 3
    result = next(out.glob("*/result.json"))  # as if it had succeeded
    RunDirectory(path.parent).write_json("result.json", RunDirectory(result.parent).read_json("result.json"))
    assert find_work(load_plan(f"{file}:diverging").records, out).failed == ()


def test_a_failure_with_a_traceback(tmp_path, here, monkeypatch):
    def fail(*arguments, **choices):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("recombine.sweeps.local.train_run", fail)
    status = run_sweep(make_plan([BASE], "here"), here, out=tmp_path)
    assert [run.error for run in status.runs] == ["ZeroDivisionError: by nothing"]
    failure = json.loads((tmp_path / status.runs[0].run / "failure.json").read_text())
    assert "Traceback" in failure["details"]
    assert failure["kind"] == "error"


def test_interrupted_sweeps_write_what_they_have(tmp_path, here):
    plan = make_plan(over_seeds(BASE, range(3)), "here")

    def interrupt(outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, here, out=tmp_path, done=interrupt)
    status = SweepReader(tmp_path).read()
    assert (status.count("finished"), status.count("waiting")) == (1, 2)
    assert (tmp_path / "results.csv").read_text().count("waiting") == 2
    assert not list(tmp_path.glob(".shared-*"))
