"""The files of a real run hold exactly the declared keys."""

import json
from dataclasses import replace
from typing import get_type_hints

import pytest

from recombine.training import schema
from recombine.training.run import train_run
from recombine.training.score import MetricDict, ScoreDict
from test_freshness import CONFIG, StoppedError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Stopped and resumed, so that every file is as full as it gets."""
    out = tmp_path_factory.mktemp("runs")

    def interrupt(progress):
        raise StoppedError

    config = replace(CONFIG, training=replace(CONFIG.training, steps=60))
    with pytest.raises(StoppedError):
        train_run(config, out=out, evaluation_instances=50, watch=interrupt)
    return train_run(config, out=out, evaluation_instances=50)


def keys(declared):
    return set(get_type_hints(declared))


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("config.json", schema.ConfigFile),
        ("split.json", schema.SplitFile),
        ("environment.json", schema.EnvironmentFile),
        ("checkpoint.json", schema.CheckpointInfo),
        ("result.json", schema.ResultFile),
    ],
)
def test_files_hold_what_is_declared(run, name, declared):
    assert set(run.read_json(name)) == keys(declared)


def test_parts_of_files_hold_what_is_declared(run):
    result = run.read_json("result.json")
    assert set(result["versions"]) == keys(schema.Versions)
    assert {frozenset(score) for metrics in result["scores"].values() for score in metrics.values()} == {
        frozenset(keys(ScoreDict))
    }
    assert {frozenset(metric) for metric in result["metrics"].values()} == {frozenset(keys(MetricDict))}
    rows = run.read_metrics()
    assert {frozenset(row) - {"scores"} for row in rows} == {frozenset(keys(schema.MetricsRow) - {"scores"})}
    assert "scores" in rows[-1]
    json.dumps(result, allow_nan=False)  # numbers are numbers
