"""The models in examples/peers: short, and trained and scored like any other."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recombine
from recombine.training.config import default_run
from recombine.training.run import train_run

FOLDER = Path(__file__).parents[2] / "examples" / "peers"
PEERS = {
    "lstm": ("LSTM", "torch"),
    "torch_transformer": ("TorchTransformer", "torch"),
    "x_transformer": ("XTransformer", "x_transformers"),
    "hugging_face": ("HuggingFace", "transformers"),
}


@pytest.mark.parametrize("name", PEERS)
def test_peers_train_and_are_scored(name, tmp_path):
    class_name, package = PEERS[name]
    pytest.importorskip(package)
    config = default_run("in_context", "tiny", f"{FOLDER / name}.py:{class_name}")
    config = replace(config, training=replace(config.training, steps=2, batch_size=4))
    run = train_run(config, out=tmp_path, evaluation_instances=8)
    result = run.read_json("result.json")
    assert result["label"] == class_name
    assert set(result["scores"]) == {"test", "ood"}


@pytest.mark.parametrize("name", PEERS)
def test_peers_do_not_look_ahead_where_that_would_reveal_answers(name):
    class_name, package = PEERS[name]
    pytest.importorskip(package)
    task = recombine.GoalGrid.preset("tiny").task
    model = default_run("goal_grid", "tiny", f"{FOLDER / name}.py:{class_name}").build_model().eval()
    inputs = task.sample("train", 0, batch_size=2).inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs)[:, 0].sum(), inputs)
    assert gradient[:, 0].abs().sum() > 0
    assert gradient[:, 1:].abs().sum() == 0


def test_the_package_has_models_of_its_own_to_compare(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    configure = importlib.import_module("package_models").configure
    sys.modules.pop("package_models")
    configs = configure("in_context", "tiny")
    assert [config.model.label for config in configs][:3] == ["softmax", "linear", "hyla"]
    assert len({config.name for config in configs}) == 4
    assert all(config.task == configs[0].task for config in configs)
    students = configure("sequence_teacher", "tiny")
    assert len({config.name for config in students}) == 4
    assert all(config.task == students[0].task for config in students)
