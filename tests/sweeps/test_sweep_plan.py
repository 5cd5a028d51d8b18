"""What a sweep file lists: grids, names of runs, errors in the file, and the list of a dry run."""

import json
from dataclasses import replace
from typing import Any

import pytest

from recombine import grid, over_seeds, search
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.models.mlp import MLPConfig
from recombine.sweeps import Record
from recombine.sweeps.plan import load_plan, make_plan
from recombine_papers.hypernetwork.fuzzy_logic import table_a3
from sweep_cases import BASE, write_sweep


def test_a_grid_has_every_combination():
    records: list[Any] = list(search(grid(BASE, hidden_dim=(4, 8)), learning_rate=(1e-3, 3e-3), steps=(5,)))
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


def test_unlike_runs_with_the_same_settings_are_told_apart():
    """Otherwise the scores of two tasks would be averaged as if they were seeds."""
    both = make_plan([*table_a3("fuzzy-logic", "tiny"), *table_a3("sraven", "tiny")], "here")
    assert len(both.records) == 12 + 24
    assert {record.settings["task"] for record in both.records} == {"fuzzy_logic", "sraven"}
    wider = [
        Record(settings={"attention": "hyla"}, config=replace(BASE, model=MLPConfig(num_layers=1, hidden_dim=width)))
        for width in (4, 8)
    ]
    plan = make_plan([record.with_seed(seed) for seed, record in enumerate(wider)], "here")
    assert [record.text for record in plan.records] == [
        "attention hyla, hidden dim 4, seed 0",
        "attention hyla, hidden dim 8, seed 1",
    ]
    seeds = [replace(BASE, training=replace(BASE.training, model_seed=seed)) for seed in range(2)]
    assert [record.text for record in make_plan(seeds, "here").records] == [
        "model seed 0, seed 0",
        "model seed 1, seed 0",
    ]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", r"wrong failed at line 24: unknown setting 'flavour'"),
        ("none", "none returned no runs: expected at least one"),
        ("numbers", "numbers: item 1 is a int: expected a RunConfig or a Record"),
        ("constant", "constant is not a function"),
        ("missing", "has no 'missing': expected one of runs, twice, diverging"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, function, message):
    file = write_sweep(tmp_path)
    with pytest.raises(InputError, match=message):
        load_plan(f"{file}:{function}")


def test_dry_run_lists_the_runs(tmp_path, capsys):
    command = ["sweep", str(write_sweep(tmp_path)), "--out", str(tmp_path / "out"), "--dry-run"]
    assert run_verb(command) == 0
    assert "12 of 12 runs to train" in capsys.readouterr().out
    assert run_verb([*command, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == 12
    assert {run["state"] for run in runs} == {"to train"}
    assert not (tmp_path / "out").exists()
