"""Status of a sweep: running, killed and damaged folders, what is shown, and the best of a grid."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from recombine.cli.main import run as run_verb
from recombine.sweeps.plan import describe_plan, make_plan
from recombine.sweeps.results import choose_best, describe_run, write_results
from recombine.sweeps.status import RunStatus, SweepReader, SweepStatus
from sweep_cases import BASE


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
    two = [*runs, replace(scored(3.0, 4.0, 0, attention="hyla", rate=1, task="text"), metric="loss")]
    table = choose_best(SweepStatus(source="here", runs=tuple(two)))
    assert "main metric, test" in table.as_dicts()[0]
    assert [row["task"] for row in table.as_dicts()] == [None, None, "text"]  # metrics are not ranked among each other
    lower = [replace(run, higher_is_better=False) for run in runs]
    rows = choose_best(SweepStatus(source="here", runs=tuple(lower))).as_dicts()
    assert [(row["attention"], row["rate"]) for row in rows] == [("hyla", 2), ("softmax", 2)]


def test_status_tells_running_from_killed(tmp_path):
    plan = make_plan([BASE], "here")
    contents = describe_plan(plan)
    key = contents["runs"][0]["run"]
    (tmp_path / "sweep.json").write_text(json.dumps(contents))
    (tmp_path / ".running").mkdir()
    beat = tmp_path / ".running" / f"{key}.json"
    beat.write_text("{}")
    (tmp_path / key).mkdir()
    (tmp_path / key / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0, "seconds": 0.5}\n{"step": 10, "sec')
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
    assert "runs[0].run is missing" in capsys.readouterr().err
    (tmp_path / "sweep.json").write_text("{")
    assert run_verb(["sweep", "status", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_status_needs_no_torch(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps(describe_plan(make_plan([BASE], "here"))))
    program = (
        "import sys, recombine.cli.main; code = recombine.cli.main.run(['sweep', 'status', sys.argv[1]])\n"
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
