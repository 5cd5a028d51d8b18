"""A run from probe to diagnosis: files in its directory, tables for people, reasons for what could not be done."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import recombine
from recombine.cli.main import run as run_verb
from recombine.cli.probe import tables
from recombine.foundation.display import Table
from recombine.inside.probe import probe_model
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run

SMALL = TransformerConfig(embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = RunConfig(
        task=FuzzyLogic(num_examples=4), model=SMALL, training=TrainingConfig(steps=20, batch_size=8, warmup_steps=5)
    )
    return train_run(config, out=tmp_path_factory.mktemp("runs"), evaluation_instances=100)


def test_probe_leaves_its_files(trained, capsys):
    assert run_verb(["probe", str(trained.path), "--num-instances", "200"]) == 0
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "untrained" in captured.out
    assert "probe: decode" in captured.err
    numbers = trained.read_json("probe.json")
    assert numbers["skipped"] == {}
    assert numbers["label"] == "hyla"
    assert set(numbers["decoders"]) == {site["name"] for site in numbers["sites"]}
    for key in ("decoders", "decoders_pictured", "decoders_same_query"):
        found = numbers[key]["codes.1"]
        assert set(found["ood"]) >= {"f1", "accuracy", "auc", "exact", "r2"}
        assert set(found["ood"]["untrained"]) == set(found["ood"]["control"]) == set(found["ood"]["majority"])
    assert set(numbers["decoders_pictured"]) == {"codes.0", "codes.1"}
    assert set(numbers["seconds"]) == {"collect", "decode", "structure", "tsne", "ablate", "swap", "total"}
    assert 0 < numbers["tsne_share"] < 1
    assert numbers["best_site"] in numbers["decoders"]
    assert len(numbers["similarity"]["codes.0"]["cosine"]) == 12
    with np.load(trained.path / "probe.npz", allow_pickle=False) as arrays:
        assert arrays["activations.codes.0"].shape == (400, 4)
        assert arrays["tsne.codes.1"].shape == (300, 2)
        assert len(arrays["sample.target"]) == len(arrays["sample.activations.codes.1"]) == 300
        assert arrays["sample.compositions"][arrays["sample.composition"][0]].startswith("(")
        assert "activations.residual.0" not in arrays


def test_the_written_codes_can_be_probed_again(trained, capsys):
    """What a run writes is what the file reader takes."""
    assert (
        run_verb(["probe", str(trained.path), "--num-instances", "200", "--no-tsne", "--save-activations", "-q"]) == 0
    )
    capsys.readouterr()
    again = recombine.probe_activations(trained.path / "probe.npz", tsne=False).numbers
    before = trained.read_json("probe.json")["decoders"]
    assert set(again["decoders"]) == set(before)
    for site, each in before.items():
        assert again["decoders"][site]["id"]["f1"] == pytest.approx(each["id"]["f1"], abs=1e-6)


def test_diagnose_probes_first(trained, capsys):
    (trained.path / "probe.json").unlink(missing_ok=True)
    assert run_verb(["diagnose", str(trained.path), "--num-instances", "200", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["verdict"] == "not learned"
    assert value == trained.read_json("diagnosis.json")
    assert (trained.path / "probe.json").exists()
    assert run_verb(["diagnose", str(trained.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("NOT LEARNED")
    assert max(map(len, shown.splitlines())) <= 100  # wider than a terminal rather than cut


def test_a_model_without_codes_is_probed_as_far_as_possible():
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))
    found = recombine.probe_model(model, FuzzyLogic(num_examples=4), num_instances=100).numbers
    assert set(found["decoders"]) == {"0", "1", "2", "3"}
    assert set(found["skipped"]) == {"codes", "structure", "ablate", "swap"}
    assert "cannot be changed" in found["skipped"]["swap"]
    named = recombine.probe_model(model, FuzzyLogic(num_examples=4), num_instances=100, sites=["2"]).numbers
    assert set(named["decoders"]) == {"2"}


def test_a_broken_model_still_gets_the_rest():
    task = FuzzyLogic(num_examples=4)
    model = build_model(SMALL, task, seed=0)
    with torch.no_grad():
        model.blocks[0].feedforward.input.bias[0] = torch.nan
    result = probe_model(model, task, num_instances=100, tsne=False)
    found = result.numbers
    assert "codes.0" in found["decoders"]
    assert "NaN" in found["skipped"]["residual.0"]
    assert found["ablations"]["base"]["ood"] is None  # the model answers NaN, which JSON cannot say
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    shown = [table for table in tables(result) if not isinstance(table, str)]
    assert shown
    assert all(isinstance(table, Table) for table in shown)  # printed as the tables of other verbs
    (layers,) = (table for table in shown if table.title.startswith("codes of a layer changed"))
    assert next(row["change (95 % interval)"] for row in layers.as_dicts() if row["split"] == "ood") is None
