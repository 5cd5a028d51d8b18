"""The experiments on scale: their runs, and the tables and figures made of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recombine.sweeps import Record
from recombine.training.config import default_run
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run
from recombine_papers import EXPERIMENTS
from recombine_papers.base import Finished, FinishedRun
from recombine_papers.claims import Level
from recombine_papers.scale.runs import change
from recombine_papers.scale.tables import correlate_measured, tabulate_seeds


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two widths over two seeds, hardly trained."""
    out = tmp_path_factory.mktemp("runs")
    base = default_run("hyperteacher", "tiny")
    base = replace(base, training=replace(base.training, steps=40))
    records = [
        Record(settings={"width": width}, config=change(base, {"hidden_dim": width}, seed=seed, num_samples=4))
        for width in (8, 32)
        for seed in (0, 1)
    ]
    return Finished(
        tuple(FinishedRun(record, train_run(record.config, out=out, evaluation_instances=200)) for record in records)
    )


def test_the_papers_sizes():
    run: Any = default_run("hyperteacher", "paper")
    assert (run.task.num_modules, run.task.num_active, run.task.num_samples) == (16, 3, 16)
    assert (run.model.num_layers, run.model.hidden_dim) == (4, 1024)
    assert (run.training.steps, run.training.learning_rate, run.training.weight_decay) == (300_000, 3e-4, 3e-3)
    assert run.training.schedule == "constant"
    transformer: Any = default_run("hyperteacher", "paper", "task_transformer").model
    assert (transformer.embedding_dim, transformer.num_heads, transformer.num_layers) == (256, 4, 4)
    assert (transformer.mlp_dim, transformer.position, transformer.causal) == (1024, "rotary", True)


def test_decodability_has_enough_runs_and_none_of_its_own():
    records = EXPERIMENTS["scale-decodability"].records("small")
    assert len({json.dumps(record.config.as_dict(), sort_keys=True) for record in records}) >= 20


def test_narrow_networks_differ_from_wide_ones_in_width_alone():
    for scale in ("small", "paper"):
        records = {tuple(record.settings.values()): record for record in EXPERIMENTS["scale-encodings"].records(scale)}
        for (encoding, width), record in records.items():
            if width == "narrow":
                wide: Any = records[encoding, "wide"].config
                narrow: Any = record.config
                assert narrow.model.hidden_dim < wide.model.hidden_dim
                assert narrow == replace(wide, model=replace(wide.model, hidden_dim=narrow.model.hidden_dim))


def test_supports_that_are_enough_cover_and_connect_all_modules():
    enough = [claim for claim in EXPERIMENTS["scale-supports"].claims if claim.text.endswith("are enough")]
    supports = {claim.of["support"] for claim in enough if isinstance(claim, Level)}
    assert len(supports) == len(enough) == 4
    for record in EXPERIMENTS["scale-supports"].records("small"):
        certificate = record.config.task.split.certificate
        if record.settings["support"] in supports:
            assert certificate.connected
            assert certificate.as_dict()["covered"]


def test_a_random_support_as_small_as_the_disconnected_one():
    experiment: Any = EXPERIMENTS["scale-supports"]
    splits = {record.settings["support"]: record.config.task.split for record in experiment.variants("small")}
    few, cut = splits["random_as_few_as_disconnected"], splits["disconnected"]
    assert len(few.train) == len(cut.train)
    assert few.certificate.connected
    assert not cut.certificate.connected


def test_means_over_seeds_by_hand(runs):
    table = tabulate_seeds(runs)
    row = table.as_dicts()[1]
    assert [each["width"] for each in table.as_dicts()] == [8, 32]
    values = [run.score("ood", "r2_pooled") for run in runs.runs if run.record.settings["width"] == 32]
    assert row["R² held out"]["value"] == pytest.approx(sum(values) / 2)
    assert row["R² held out"]["values"] == pytest.approx(values)
    assert row["R² held out"]["low"] < min(values) < max(values) < row["R² held out"]["high"]
    assert row["seeds"] == 2
    assert (row["covered"], row["connected"], row["trained"]) == ("yes", "yes", {"value": 69})


def test_decodability_is_measured_once_and_correlated(runs, monkeypatch):
    experiment = EXPERIMENTS["scale-decodability"]
    measured = experiment.measure_runs(runs, "cpu")
    rows = correlate_measured(measured).rows
    assert [row[:3] for row in rows] == [("last hidden", "all", 4), ("last hidden", "covered and connected", 4)]
    held_out = [run.measured["z_held_out"] for run in measured.runs]
    assert rows[0][3] == pytest.approx(
        np.corrcoef(held_out, [run.score("ood", "r2_pooled") for run in runs.runs])[0, 1]
    )
    monkeypatch.setattr("recombine_papers.scale.decodability.decode_sites", None)  # all are measured already
    assert experiment.measure_runs(runs, "cpu") == measured


def test_decodability_is_that_of_the_last_layer(monkeypatch):
    """Layer 10 comes after layer 9, although its name does not."""
    sites = {f"hidden.{layer}": {"ood": layer / 10} for layer in range(11)}
    monkeypatch.setattr("recombine_papers.scale.runs.measure_decodability", lambda path, **_: {"sites": sites})
    assert EXPERIMENTS["scale-decodability"].measures(RunDirectory(Path("run")), "cpu") == {"z_held_out": 1.0}
