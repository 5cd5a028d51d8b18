"""Run directories: whole or absent, strict, and never two writers."""

import json
from dataclasses import replace
from typing import get_type_hints

import pytest
import torch

from recombine.foundation.errors import InputError, find_schema_error
from recombine.training import schema
from recombine.training.directory import FORMAT_VERSION, RunDirectory, hash_config
from recombine.training.run import train_run
from test_freshness import CONFIG as TRAINED
from test_freshness import StoppedError

CONFIG = {"task": {"name": "x"}, "model": {}, "training": {"steps": 3}}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "name", CONFIG)


def test_the_hash_names_the_directory(run, tmp_path):
    assert run.path.name == f"name-{hash_config(CONFIG)}"
    assert hash_config({"b": 1, "a": 2}) == hash_config({"a": 2, "b": 1})
    assert hash_config({"a": 1}) != hash_config({"a": 2})
    assert RunDirectory.create(tmp_path, "name", CONFIG).path == run.path
    assert RunDirectory.open(run.path).config == CONFIG


def test_checkpoints_come_back_as_they_were(run):
    assert run.load_checkpoint() is None
    tensors = {"a/b": torch.randn(3, 4), "scalar": torch.tensor(2.0), "strided": torch.randn(4, 3).T}
    run.save_checkpoint(tensors, {"step": 7})
    loaded, info = run.load_checkpoint()
    assert info == {"step": 7}
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_the_tensors_know_their_own_step(run):
    """A kill between the two files leaves an old note: the tensors' header counts."""
    run.save_checkpoint({"a": torch.zeros(1)}, {"step": 1})
    note = (run.path / "checkpoint.json").read_bytes()
    run.save_checkpoint({"a": torch.ones(1)}, {"step": 2})
    (run.path / "checkpoint.json").write_bytes(note)
    tensors, info = run.load_checkpoint()
    assert info["step"] == 2
    assert tensors["a"] == 1


def test_a_score_that_is_no_number_is_left_out_of_the_metrics(run):
    scores = {"test": {"r2": float("nan"), "accuracy": 0.5}}
    run.append_metrics({"step": 1, "loss": 1.0, "learning_rate": 0.1, "seconds": 1.0, "scores": scores})
    assert run.read_metrics()[-1]["scores"] == {"test": {"accuracy": 0.5}}


def test_missing_foreign_and_other_versions(tmp_path, run):
    with pytest.raises(InputError, match="does not exist: expected a folder"):
        RunDirectory.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"config.json does not exist"):
        RunDirectory.open(tmp_path / "empty")
    with pytest.raises(InputError, match=f"is a folder of runs: expected one of them, such as '{run.path}'"):
        RunDirectory.open(run.path.parent)
    (run.path / "config.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="does not belong to a Recombine run"):
        RunDirectory.open(run.path)
    (run.path / "config.json").write_text(json.dumps({"format": "recombine-run", "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(InputError, match=f"has format version {FORMAT_VERSION + 1}: expected {FORMAT_VERSION}"):
        RunDirectory.open(run.path)
    (run.path / "config.json").write_text('{"format": "recomb')
    with pytest.raises(InputError, match="expected JSON"):
        RunDirectory.open(run.path)
    (run.path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="it: expected object, got array"):
        RunDirectory.open(run.path)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A real run, stopped and resumed, so that every file is as full as it gets."""
    out = tmp_path_factory.mktemp("runs")

    def interrupt(progress):
        raise StoppedError

    config = replace(TRAINED, training=replace(TRAINED.training, steps=60))
    with pytest.raises(StoppedError):
        train_run(config, out=out, evaluation_instances=50, watch=interrupt)
    return train_run(config, out=out, evaluation_instances=50)


@pytest.mark.parametrize("name", schema.FILES)
def test_files_hold_exactly_what_is_declared(resumed, name):
    contents = resumed.read_json(name, complete=True)
    assert set(contents) == set(get_type_hints(schema.FILES[name]))
    assert find_schema_error(contents | {"more": 1}, schema.FILES[name]) is None
    for key in contents:
        fault = find_schema_error(contents | {key: b"?"}, schema.FILES[name], complete=False)
        assert fault is not None, key
        assert fault.startswith(key), fault


def test_scores_and_rows_hold_what_is_declared(resumed):
    result, rows = resumed.read_json("result.json"), resumed.read_metrics()
    scores = [score for metrics in result["scores"].values() for score in metrics.values()]
    assert {frozenset(score) for score in scores} == {frozenset(get_type_hints(schema.Score)) - {"sums"}}
    assert {frozenset(row) | {"scores"} for row in rows} == {frozenset(get_type_hints(schema.MetricsRow))}
    assert "scores" in rows[-1]
