"""Trackers are given the rows of metrics.jsonl, resume with their run, and can fail without harm."""

import json
import sys
from dataclasses import replace

import pytest

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.integrations.trackers import build_tracker
from recombine.training.session import Tracker
from test_run import CONFIG, train

SHORT = replace(CONFIG, training=replace(CONFIG.training, steps=30))


class Recorder(Tracker):
    """Remembers what it is given; fails at a step if asked to."""

    name = "recorder"

    def __init__(self, fails_at=None):
        self.calls, self.rows, self.fails_at = [], [], fails_at

    def start(self, run, step):
        self.calls.append(f"start {step}")

    def add(self, row):
        if row["step"] == self.fails_at:
            raise ConnectionError("the server is gone\nand more")
        self.rows.append(row)

    def finish(self, result):
        self.calls.append(f"finish {result['steps']}")

    def close(self):
        self.calls.append("close")


def stop(progress):
    if progress.step >= 20:
        raise KeyboardInterrupt


def test_a_tracker_is_given_the_rows_and_the_result(tmp_path):
    recorder = Recorder()
    run = train(SHORT, tmp_path, trackers=[recorder])
    assert recorder.rows == run.read_metrics()
    assert recorder.calls == ["start 0", "finish 30", "close"]


def test_a_tracker_that_fails_is_left_out(tmp_path, caplog):
    failing, other = Recorder(fails_at=20), Recorder()
    train(SHORT, tmp_path, trackers=[failing, other])
    assert [row["step"] for row in failing.rows] == [10]
    assert [row["step"] for row in other.rows] == [10, 20, 30]
    assert "recorder failed and is left out: the server is gone" in caplog.text


def test_tensorboard_reads_back_what_was_written(tmp_path):
    """With its own reader, from a run that was interrupted and resumed."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyboardInterrupt):
        train(SHORT, tmp_path, trackers=[build_tracker("tensorboard")], watch=stop)
    run = train(SHORT, tmp_path, trackers=[build_tracker("tensorboard")])
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    rows = run.read_metrics()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(row["step"], pytest.approx(row["loss"])) for row in rows]
    (last,) = events.Scalars("ood/r2")
    assert last.value == pytest.approx(rows[-1]["scores"]["ood"]["r2"])
    (final,) = events.Scalars("final/ood/r2")
    assert final.value == pytest.approx(run.read_json("result.json")["scores"]["ood"]["r2"]["value"])


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train(SHORT, tmp_path, trackers=[build_tracker("wandb")])
    wandb.teardown()  # its own process writes the record
    assert "left out" not in caplog.text
    (path,) = run.path.glob("wandb/offline-run-*/run-*.wandb")
    record = path.read_bytes()  # numbers are kept as JSON
    assert all(json.dumps(row["loss"]).encode() in record for row in run.read_metrics())
    score = run.read_json("result.json")["scores"]["ood"]["r2"]["value"]
    assert b"final/ood/r2" in record
    assert json.dumps(score).encode() in record


def test_a_tracker_that_is_not_there(monkeypatch, capsys):
    with pytest.raises(InputError, match="unknown tracker 'paper': expected one of tensorboard, wandb"):
        build_tracker("paper")
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert run_verb(["train", "fuzzy-logic", "--scale", "tiny", "--track", "wandb"]) == 2
    error = capsys.readouterr().err
    assert (
        "tracker 'wandb' needs the package wandb: expected it to be installed (pip install 'recombine[wandb]')" in error
    )
