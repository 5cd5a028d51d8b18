"""Sweeps: what a file lists, that nothing is trained twice, failures, status, results and the best of a grid."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from recombine import default_run, grid, over_seeds, search, table_a3
from recombine.cli import run as run_verb
from recombine.commands.live import SweepDisplay, draw, format_duration, summarise
from recombine.engines import Engine, Outcome
from recombine.engines.worker import train_job
from recombine.errors import InputError
from recombine.models import MLPConfig
from recombine.recipes.record import Record
from recombine.run import RunConfig
from recombine.sweep.execute import find_work, run_sweep
from recombine.sweep.plan import describe_plan, load_plan, make_plan
from recombine.sweep.results import choose_best, describe_run, write_results
from recombine.sweep.status import RunStatus, SweepReader, SweepStatus
from recombine.tasks import Hyperteacher
from recombine.train import TrainingConfig

BASE = RunConfig(
    task=Hyperteacher(num_modules=4, num_active=2, support="random"),
    model=MLPConfig(num_layers=1, hidden_dim=4),
    training=TrainingConfig(steps=10, batch_size=4),
)

FILE = """
from recombine import Hyperteacher, RunConfig, TrainingConfig, grid, over_seeds, search
from recombine.models import MLPConfig


def runs():
    base = RunConfig(
        task=Hyperteacher(num_modules=4, num_active=2, support="random"),
        model=MLPConfig(num_layers=1, hidden_dim=4),
        training=TrainingConfig(steps=10, batch_size=4),
    )
    return over_seeds(search(grid(base, hidden_dim=(4, 8)), learning_rate=(1e-3, 3e-3)), seeds=range(3))


def twice():
    return [*runs(), *runs()]


def diverging():
    return list(grid(next(iter(runs())).config, learning_rate=(1e-3, 1e30)))


def wrong():
    return grid(next(iter(runs())), flavour=(1, 2))


def none():
    return []


def numbers():
    return [1]


constant = 3
"""


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
    monkeypatch.setattr("recombine.engines.EngineFlags.open_engine", lambda self, num_runs: engine)
    monkeypatch.setattr(Hyperteacher, "evaluation_instances", 200)
    return engine


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "widths.py"
    path.write_text(FILE)
    return path


def test_a_grid_has_every_combination():
    records = list(search(grid(BASE, hidden_dim=(4, 8)), learning_rate=(1e-3, 3e-3), steps=(5,)))
    assert [dict(record.settings) for record in records][:2] == [
        {"hidden_dim": 4, "learning_rate": 1e-3, "steps": 5},
        {"hidden_dim": 4, "learning_rate": 3e-3, "steps": 5},
    ]
    assert [record.config.model.hidden_dim for record in records] == [4, 4, 8, 8]
    assert {record.searched for record in records} == {("learning_rate", "steps")}
    assert [record.seed for record in over_seeds(BASE, range(3))] == [0, 1, 2]
    assert len(list(grid([BASE, records[0]], hidden_dim=(4,)))) == 2
    with pytest.raises(InputError, match="unknown setting 'flavour': expected one of seed, "):
        list(grid(BASE, flavour=(1,)))
    with pytest.raises(InputError, match="setting 'hidden_dim' has no values"):
        list(grid(BASE, hidden_dim=()))


def test_the_grids_of_the_paper_are_one_call():
    records = list(table_a3("fuzzy-logic", "tiny"))
    assert len(records) == 3 * 4
    assert records[0].settings == {"attention": "softmax", "learning_rate": 1e-3, "weight_decay": 0.03}
    assert records[0].searched == ("learning_rate", "weight_decay")
    assert len(list(table_a3("sraven", attentions=["hyla"]))) == 8
    with pytest.raises(InputError, match="unknown task with a grid 'hyperteacher'"):
        list(table_a3("hyperteacher"))


def test_plain_configurations_are_named_by_what_differs():
    others = [
        BASE,
        replace(BASE, model=MLPConfig(num_layers=2, hidden_dim=4)),
        replace(BASE, task=replace(BASE.task, seed=1)),
    ]
    plan = make_plan(others, "here")
    assert [record.text for record in plan.records] == [
        "num layers 1, seed 0",
        "num layers 2, seed 0",
        "num layers 1, seed 1",
    ]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", r"wrong failed at line 24: InputError: unknown setting 'flavour'"),
        ("none", "none returned no runs: expected at least one"),
        ("numbers", "numbers: item 1 is a int: expected a RunConfig or a Record"),
        ("constant", "constant is not a function"),
        ("missing", "has no 'missing': expected one of runs, twice, diverging"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(file, function, message):
    with pytest.raises(InputError, match=message):
        load_plan(f"{file}:{function}")


def test_an_error_in_a_file_names_the_line(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("import recombine\n\nruns = undefined_name\n")
    assert run_verb(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "line 3: NameError: name 'undefined_name' is not defined" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"sweep 'nothing': expected FILE\.py"):
        load_plan("nothing")


def test_a_sweep_trains_each_run_once(file, tmp_path, here, capsys):
    out = tmp_path / "out"
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
    """Both files hold the same, for every reader."""
    import pandas

    frames = [pandas.read_parquet(out / "results.parquet"), pandas.read_csv(out / "results.csv")]
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
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    assert polars.read_parquet(out / "results.parquet")["test_r2"].to_list() == frames[0].test_r2.tolist()
    assert duckdb.sql(f"select count(*) from '{out}/results.parquet'").fetchall() == [(12,)]


def test_failures_are_kept_and_retried(file, tmp_path, here, capsys):
    out = tmp_path / "out"
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
    (path.parent / "result.json").write_text(result.read_text())
    assert find_work(load_plan(f"{file}:diverging").records, out).failed == ()


def test_a_failure_with_a_traceback(tmp_path, here, monkeypatch):
    def fail(*arguments, **choices):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("recombine.engines.worker.train_run", fail)
    status = run_sweep(make_plan([BASE], "here"), here, out=tmp_path)
    assert [run.error for run in status.runs] == ["ZeroDivisionError: by nothing"]
    failure = json.loads((tmp_path / status.runs[0].run / "failure.json").read_text())
    assert "Traceback" in failure["details"]
    assert failure["kind"] == "error"


def test_interrupted_sweeps_write_what_they_have(tmp_path, here):
    plan = make_plan(over_seeds(BASE, range(3)), "here")

    def interrupt(record, outcome):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(plan, here, out=tmp_path, done=interrupt)
    status = SweepReader(tmp_path).read()
    assert (status.count("finished"), status.count("waiting")) == (1, 2)
    assert (tmp_path / "results.csv").read_text().count("waiting") == 2
    assert not list(tmp_path.glob(".shared-*"))


def status_of(state, number=0, **choices):
    values = {"run": f"run-{number}", "settings": {"width": 4}, "seed": number, "searched": (), "steps": 100}
    values |= {"metric": "r2", "higher_is_better": True, "state": state, **choices}
    return RunStatus(**values)


def scored(test, ood, number, **settings):
    result = {"scores": {"test": {"r2": {"value": test}}, "ood": {"r2": {"value": ood}}}}
    return status_of("finished", number, settings=settings, searched=("rate",), result=result, step=100, seconds=10.0)


def test_the_best_is_chosen_on_test_never_on_ood():
    runs = [
        scored(0.9, 0.1, 0, attention="hyla", rate=1),
        scored(0.7, 0.2, 1, attention="hyla", rate=1),
        scored(0.5, 0.9, 0, attention="hyla", rate=2),
        scored(0.6, 0.9, 1, attention="hyla", rate=2),
        scored(0.95, 0.3, 0, attention="softmax", rate=2),
    ]
    table = choose_best(SweepStatus(source="here", runs=tuple(runs)))
    rows = table.as_dicts()
    assert [(row["attention"], row["rate"], row["seeds"], row["points"]) for row in rows] == [
        ("softmax", 2, 1, 1),
        ("hyla", 1, 2, 2),
    ]
    assert rows[1]["r2, test"]["value"] == pytest.approx(0.8)
    assert rows[1]["ood"]["value"] == pytest.approx(0.15)
    assert "never" in choose_best.__doc__ or "chosen on test" in table.note
    waiting = status_of("waiting", 1, settings={"attention": "hyla", "rate": 3}, searched=("rate",))
    lucky = scored(0.99, 0.0, 0, attention="hyla", rate=3)  # one of its two seeds: it does not compete yet
    rows = choose_best(SweepStatus(source="here", runs=(*runs, lucky, waiting))).as_dicts()
    assert [row["rate"] for row in rows] == [2, 1]
    lower = [replace(run, higher_is_better=False) for run in runs]
    rows = choose_best(SweepStatus(source="here", runs=tuple(lower))).as_dicts()
    assert [(row["attention"], row["rate"]) for row in rows] == [("hyla", 2), ("softmax", 2)]


def test_status_in_words():
    running = status_of("running", 1, step=50, seconds=5.0)
    best = scored(0.9, 0.1, 0, width=8)
    status = SweepStatus(source="here", runs=(running, status_of("waiting", 2), best))
    assert status.steps_per_second == 10
    assert status.seconds_left == 15
    assert summarise(status) == (
        "3 runs: 1 running, 1 finished, 0 failed, 1 waiting · 10 steps/s · 15 s left · "
        "best on test so far: test 0.900 (ood 0.100), width 8, seed 0"
    )
    assert SweepStatus(source="here", runs=(status_of("waiting"),)).seconds_left is None
    assert len(draw(replace(status, runs=tuple(status_of("running", n) for n in range(20)))).renderables) == 3
    assert [format_duration(value) for value in (3.0, 600.0, 12_000.0, 400_000.0)] == [
        "3 s",
        "10 min",
        "3 h 20 min",
        "4.6 days",
    ]


def test_status_tells_running_from_killed(tmp_path):
    plan = make_plan([BASE], "here")
    contents = describe_plan(plan)
    key = contents["runs"][0]["run"]
    (tmp_path / "sweep.json").write_text(json.dumps(contents))
    (tmp_path / ".running").mkdir()
    beat = tmp_path / ".running" / f"{key}.json"
    beat.write_text("{}")
    (tmp_path / key).mkdir()
    (tmp_path / key / "metrics.jsonl").write_text('{"step": 5, "seconds": 0.5}\n{"step": 10, "sec')
    (run,) = SweepReader(tmp_path).read().runs
    assert (run.state, run.step, run.seconds) == ("running", 5, 0.5)
    os.utime(beat, (time.time() - 3600, time.time() - 3600))
    (run,) = SweepReader(tmp_path).read().runs
    assert (run.state, run.step) == ("waiting", 5)


def test_a_folder_without_a_sweep(tmp_path, capsys):
    assert run_verb(["sweep", "status", str(tmp_path)]) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text('{"format": "recombine-sweep", "format_version": 9, "runs": [1]}')
    assert run_verb(["sweep", "status", str(tmp_path)]) == 2
    assert "has version 9: expected 1" in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text(
        '{"format": "recombine-sweep", "format_version": 1, "source": "", "runs": [{}]}'
    )
    assert run_verb(["sweep", "status", str(tmp_path)]) == 2
    assert "lacks 'run'" in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text("{")
    assert run_verb(["sweep", "status", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_status_needs_no_torch(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps(describe_plan(make_plan([BASE], "here"))))
    program = (
        "import sys, recombine.cli; code = recombine.cli.run(['sweep', 'status', sys.argv[1]])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program, tmp_path], check=True, capture_output=True, text=True)
    assert "1 runs: 0 running, 0 finished, 0 failed, 1 waiting" in shown.stdout


def test_columns_of_one_type(tmp_path):
    runs = (
        status_of("failed", 0, settings={"rate": 1}, error="why"),
        status_of("waiting", 1, settings={"rate": "auto"}),
    )
    write_results(SweepStatus(source="here", runs=runs), tmp_path)
    rows = (tmp_path / "results.csv").read_text().splitlines()
    assert rows[1].startswith("run-0,1,0,failed,why")
    assert rows[2].startswith("run-1,auto,1,waiting,,")
    assert describe_run(runs[0])["error"] == "why"


def test_without_a_terminal_there_are_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("recombine.commands.live.REFRESH_SECONDS", 0.01)
    monkeypatch.setattr("recombine.commands.live.LINE_SECONDS", 0.02)
    plan = make_plan([BASE], "here")
    with SweepDisplay(SweepReader(tmp_path, describe_plan(plan)), total=1, done=0, quiet=False) as display:
        made = display.last_line
        wait_until(lambda: display.last_line > made)
        display.tell(plan.records[0], Outcome(key=plan.records[0].config.directory_name, error="no luck", kind="lost"))
    shown = capsys.readouterr().err
    assert "1 runs: 0 running, 0 finished, 0 failed, 1 waiting" in shown
    assert "1/1 seed 0: failed: no luck" in shown


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_dry_run_estimates_each_size_once(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    command = ["sweep", str(file), "--out", str(tmp_path / "out"), "--dry-run", "--jobs", "2", "--threads", "1"]
    assert run_verb(command) == 0
    shown = capsys.readouterr()
    assert "measured size 2/2" in shown.err
    assert "12 runs to train:" in shown.out
    assert "with 2 at a time and 1 thread each" in shown.out
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "cache" / "estimates").iterdir())) == 2
    monkeypatch.setattr("recombine.sweep.estimate.measure_cost", lambda *a, **k: pytest.fail("measured again"))
    assert run_verb([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["wall_seconds"] == pytest.approx(value["seconds"] / 2)
    assert len(value["runs"]) == 12


def test_costs_grow_with_steps():
    from recombine.sweep.estimate import Cost, describe_size

    cost = Cost(step=0.1, interim=(0.0, 0.0), final=(1.0, 0.001))
    assert cost.total(BASE) == pytest.approx(10 * 0.1 + 1 + 0.001 * BASE.task.evaluation_instances)
    longer = replace(
        BASE, task=replace(BASE.task, seed=3), training=replace(BASE.training, steps=20, learning_rate=0.1)
    )
    assert describe_size(longer) == describe_size(BASE)
    assert describe_size(replace(BASE, training=replace(BASE.training, batch_size=8))) != describe_size(BASE)


def test_records_can_be_swept(tmp_path, here):
    status = run_sweep(make_plan([Record(settings={"name": "one"}, config=BASE)], "here"), here, out=tmp_path)
    assert status.best is not None
    assert status.best.settings == {"name": "one"}
    assert default_run("hyperteacher", "tiny").directory_name.startswith("hyperteacher-")
