"""`recombine.benchmark`: any module, with progress, and with a run directory that probes and reports can use."""

import json

import pytest
import torch
from torch import nn

import recombine
from recombine.cli.main import run as run_verb
from recombine.foundation import display
from recombine.foundation.errors import InputError

TASK = recombine.FuzzyLogic(num_examples=4)
TRAINING = recombine.TrainingConfig(steps=20, batch_size=8)


def make_model(task):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))


def benchmark(out=None, model=None, **options):
    model = make_model(TASK) if model is None else model
    return recombine.benchmark(model, TASK, training=TRAINING, evaluation_instances=60, out=out, **options)


def test_with_and_without_a_directory_the_scores_are_the_same(tmp_path):
    without = benchmark()
    model = make_model(TASK)
    within = benchmark(tmp_path, model)
    assert without.run is None
    assert dict(within) == dict(without)
    stored = within.run.load_checkpoint()[0]
    assert torch.equal(stored["model/1.weight"], model.state_dict()["1.weight"])
    again = make_model(TASK)  # the same initial parameters find the finished run, and get its parameters
    found = benchmark(tmp_path, again, watch=lambda _: pytest.fail("it trained again"))
    assert found.run.path == within.run.path
    assert dict(found) == dict(within)
    assert torch.equal(again[1].weight, model[1].weight)
    assert benchmark(tmp_path, model).run.path != within.run.path  # it starts from trained parameters


def test_the_run_can_be_probed_and_diagnosed(tmp_path, capsys, monkeypatch):
    run = benchmark(tmp_path).run
    with pytest.raises(InputError, match="model 'Sequential' was built outside this package: name a function"):
        recombine.load_run(run.path)
    with pytest.raises(InputError, match="does not build a module: expected a function of the task"):
        recombine.load_run(run.path, code=[make_model(TASK)])
    with pytest.raises(InputError, match="does not fit the model"):
        recombine.load_run(run.path, code=[lambda task: nn.Linear(5, 1)])
    _, config, model = recombine.load_run(run.path, code=[make_model])
    assert config.model.label == "Sequential"
    assert model(TASK.sample("test", 0).inputs).shape == (128, 1)
    file = tmp_path / "module.py"
    file.write_text(
        "from torch import nn\n"
        "def make(task):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))\n"
    )
    code = ["--code", f"{file}:make"]
    assert run_verb(["probe", str(run.path), "--num-instances", "120", "--no-tsne", "--json", *code]) == 0
    assert json.loads(capsys.readouterr().out)["label"] == "Sequential"
    assert run_verb(["diagnose", str(run.path), *code]) == 0
    assert run_verb(["report", str(run.path), "-o", str(tmp_path / "report.html")]) == 0


def test_progress_is_shown_unless_it_is_not_wanted(capsys, monkeypatch):
    monkeypatch.setattr(display, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(display, "_line_interval", lambda elapsed: 0.0)
    benchmark()
    assert "10/20 (50 %)  loss" in capsys.readouterr().err
    benchmark(progress=False)
    assert capsys.readouterr().err == ""
    steps = []
    benchmark(watch=lambda progress: steps.append(progress.step))
    assert steps == [10, 20]
    assert capsys.readouterr().err == ""


class WithWeights(nn.Module):
    """Returns more than its predictions, as many modules do."""

    def __init__(self, task=None):
        super().__init__()
        self.layers = make_model(TASK)

    def forward(self, inputs):
        return self.layers(inputs), None


def test_a_model_that_returns_a_tuple_is_refused_in_training_too(tmp_path, capsys):
    with pytest.raises(InputError, match=r"the model returned a tuple of 2 \(Tensor, NoneType\): .* wrap it"):
        benchmark(model=WithWeights())
    argv = ["train", "fuzzy-logic", "--num-examples", "4", "--model", f"{__file__}:WithWeights", "--steps", "2"]
    assert run_verb([*argv, "--batch-size", "8", "-q", "--out", str(tmp_path)]) == 2
    assert "the model returned a tuple of 2" in capsys.readouterr().err
