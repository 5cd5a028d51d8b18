"""The recipes of SC: what they run, and the tables they make of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from recombine.cli import run as run_verb
from recombine.recipes import EXPERIMENTS, scale
from recombine.recipes.scale.figures import draw_scale
from recombine.recipes.scale.tables import compare_seeds, correlate_decodability
from recombine.run import default_run, train_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two widths over two seeds, hardly trained."""
    out = tmp_path_factory.mktemp("runs")
    base = default_run("hyperteacher", "tiny")
    base = replace(base, training=replace(base.training, steps=40))
    configs = {
        f"width {width} / seed {seed}": scale.change(base, {"hidden_dim": width}, seed=seed, num_samples=4)
        for width in (8, 32)
        for seed in (0, 1)
    }
    return {label: train_run(each, out=out, evaluation_instances=200) for label, each in configs.items()}


def test_the_papers_sizes():
    run = default_run("hyperteacher", "paper")
    assert (run.task.num_modules, run.task.num_active, run.task.num_samples) == (16, 3, 16)
    assert (run.model.num_layers, run.model.hidden_dim) == (4, 1024)
    assert (run.training.steps, run.training.learning_rate, run.training.weight_decay) == (300_000, 3e-4, 3e-3)
    assert run.training.schedule == "constant"
    transformer = default_run("hyperteacher", "paper", "task_transformer").model
    assert (transformer.embedding_dim, transformer.num_heads, transformer.num_layers) == (256, 4, 4)
    assert (transformer.mlp_dim, transformer.position, transformer.causal) == (1024, "rotary", True)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("scale-")])
def test_runs_of_an_experiment_differ(name):
    runs = EXPERIMENTS[name].runs("small")
    hashes = [json.dumps(run.as_dict(), sort_keys=True) for run in runs.values()]
    assert len(runs) >= 9
    assert len(set(hashes)) == len(hashes) or name == "scale-decodability"


def test_decodability_has_enough_runs_and_none_of_its_own():
    runs = EXPERIMENTS["scale-decodability"].runs("small")
    assert len({json.dumps(run.as_dict(), sort_keys=True) for run in runs.values()}) >= 20


def test_a_random_support_as_small_as_the_disconnected_one():
    runs = EXPERIMENTS["scale-supports"].runs("small")
    few, cut = (runs[f"{name} / seed 0"].task.split for name in ("random, as few as disconnected", "disconnected"))
    assert len(few.train) == len(cut.train)
    assert few.certificate.connected
    assert not cut.certificate.connected


def test_means_over_seeds_by_hand(runs):
    (audit,) = compare_seeds(runs)
    assert [row[0] for row in audit.rows] == ["width 8", "width 32"]
    row = dict(zip(audit.columns, audit.rows[1], strict=True))
    results = [run.read_json("result.json") for label, run in runs.items() if label.startswith("width 32")]
    values = [result["scores"]["ood"]["r2_pooled"]["value"] for result in results]
    mean, error = sum(values) / 2, abs(values[0] - values[1]) / 2
    assert row["R² held out"].replace("−", "-") == f"{mean:.3f} ± {error:.3f}"
    assert row["seeds"] == 2
    assert (row["covered"], row["connected"], row["trained"]) == ("yes", "yes", "69")


def test_decodability_is_measured_once_and_correlated(runs, monkeypatch):
    decodability, correlations = correlate_decodability(runs)
    assert len(decodability.rows) == 4
    assert {row[0] for row in correlations.rows} == {"hidden.0", "hidden.1"}
    held_out = [each.read_json("decodability.json")["sites"]["hidden.1"]["ood"] for each in runs.values()]
    scores = [each.read_json("result.json")["scores"]["ood"]["r2_pooled"]["value"] for each in runs.values()]
    row = next(row for row in correlations.rows if row[:2] == ("hidden.1", "all"))
    assert row[2:4] == (4, pytest.approx(np.corrcoef(held_out, scores)[0, 1]))
    monkeypatch.setattr("recombine.probe.measures.decodability.decode_sites", None)  # all are measured already
    assert correlate_decodability(runs)[0].rows == decodability.rows


def test_the_figure_of_all_runs(runs, tmp_path):
    """Four panels; a line for each split of a curve, a point a run of the last."""
    correlate_decodability(runs)
    labels = {"width 8": "4 compositions", "width 32": "random"}
    others = {
        label.replace(old, new): run for label, run in runs.items() for old, new in labels.items() if old in label
    }
    (path,) = draw_scale(runs | others, tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_reproduce_prints_the_tables(tmp_path, monkeypatch, capsys):
    quick = {
        "only / seed 0": replace(
            default_run("hyperteacher", "tiny"),
            training=replace(default_run("hyperteacher", "tiny").training, steps=5),
        )
    }
    experiment = replace(EXPERIMENTS["scale-width"], runs=lambda _: quick)
    monkeypatch.setitem(EXPERIMENTS, "scale-width", experiment)
    assert run_verb(["reproduce", "scale-width", "--scale", "tiny", "--out", str(tmp_path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["tables"]["means over seeds"][0]["parameters"] == value["results"]["only / seed 0"]["num_parameters"]
    assert run_verb(["reproduce", "scale-width", "--scale", "tiny", "--out", str(tmp_path), "-q"]) == 0
    assert "Do wider networks" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["mlp", "hypernetwork", "task_transformer"])
def test_the_command_line_trains_and_probes_each_model(model, tmp_path, capsys):
    flags = ["--scale", "tiny", "--model", model, "--steps", "5", "--evaluation-instances", "50"]
    assert run_verb(["train", "hyperteacher", *flags, "--out", str(tmp_path), "-q"]) == 0
    path = capsys.readouterr().out.split()[-1]
    assert run_verb(["probe", path, "--no-tsne", "--num-instances", "200", "--json"]) == 0
    probe = json.loads(capsys.readouterr().out)
    assert probe["reading"]["labels"] == "the strength of each module in the task"
    assert all("r2" in each["ood"] for each in probe["decoders"].values())
