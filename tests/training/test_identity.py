"""`benchmark(model, task, out=DIR)` returns no other model's scores: a change of the module is trained, the same module is not."""

import functools
import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import recombine
from recombine.training.config import default_run
from recombine.training.session import Progress

TASK = recombine.FuzzyLogic(num_examples=4)
TRAINING = recombine.TrainingConfig(steps=2, batch_size=8)

CELL = """
import os
import torch
from torch import nn
SCALE = {scale}
def act(x):
    return x.{activation}()
class Layer(nn.Linear):
    def forward(self, x):
        return {layer}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Layer(20, 8), nn.Linear(8, 1)
    def forward(self, x):
        return {model}
"""
PLAIN = {
    "scale": 1.0,
    "activation": "relu",
    "layer": "act(super().forward(x))",
    "model": "self.last(self.first(x.flatten(1)))",
}


def from_cell(**changes):
    """A model of a notebook cell, whose source nobody can look up."""
    namespace = {"__name__": "__main__"}
    exec(CELL.format(**{**PLAIN, **changes}), namespace)  # noqa: S102
    return namespace["Model"]()


class Net(nn.Module):
    """A model of a file, with an attribute that no `repr` shows."""

    def __init__(self, activation=functional.relu, scale=1.0, layer=nn.Linear):
        super().__init__()
        self.activation, self.scale = activation, scale
        self.first, self.last = layer(20, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.scale * self.last(self.activation(self.first(x.flatten(1))))


class Heads(nn.Module):
    """Own attention with any number of heads and the same parameters."""

    def __init__(self, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.embed, self.mix, self.last = nn.Linear(5, 8), nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x):
        q, k, v = self.mix(self.embed(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last(mixed[:, -1])


def scaled(factor):
    return lambda x: factor * functional.relu(x)


def frozen(model):
    model.first.requires_grad_(False)
    return model


def hooked(model, factor):
    model.first.register_forward_hook(lambda module, inputs, output: factor * output)
    return model


def imported(tmp_path, body):
    """A model whose layer comes from another file; both files are loaded anew, as in a new process."""
    for name, text in {
        "own_layer": f"from torch import nn\nclass Layer(nn.Linear):\n    def forward(self, x):\n        return {body}\n",
        "own_net": (
            "from own_layer import Layer\nimport own_layer\nfrom torch import nn\nclass Net(nn.Sequential):\n"
            "    def __init__(self):\n        super().__init__(nn.Flatten(), Layer(20, 1))\n"
        ),
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(text, spec.origin, "exec"), vars(sys.modules[name]))  # noqa: S102
    return sys.modules["own_net"].Net()


def with_environment(value):
    os.environ["OWN_SCALE"] = value
    return from_cell(model="float(os.environ['OWN_SCALE']) * self.last(self.first(x.flatten(1)))")


CHANGES = {
    "an attribute that repr does not show": (lambda _: Net(), lambda _: Net(scale=3.0)),
    "a layer's forward in a notebook cell": (
        lambda _: from_cell(),
        lambda _: from_cell(layer="act(x @ self.weight.T)"),
    ),
    "the model's forward in a notebook cell": (
        lambda _: from_cell(),
        lambda _: from_cell(model="self.last(self.first(x.flatten(1)) ** 2)"),
    ),
    "a layer imported from another file": (
        lambda path: imported(path, "super().forward(x)"),
        lambda path: imported(path, "super().forward(x).tanh()"),
    ),
    "an activation passed as a function": (lambda _: Net(), lambda _: Net(functional.gelu)),
    "requires_grad_(False)": (lambda _: Net(), lambda _: frozen(Net())),
    "a forward hook": (lambda _: Net(), lambda _: hooked(Net(), 2)),
    "another forward hook": (lambda _: hooked(Net(), 1), lambda _: hooked(Net(), 2)),
    "heads of own attention": (lambda _: Heads(1), lambda _: Heads(8)),
    "a closure": (lambda _: Net(scaled(1)), lambda _: Net(scaled(2))),
    "a function that is called": (lambda _: from_cell(), lambda _: from_cell(activation="tanh")),
    "a global variable": (
        lambda _: from_cell(model="SCALE * self.last(self.first(x.flatten(1)))"),
        lambda _: from_cell(scale=2.0, model="SCALE * self.last(self.first(x.flatten(1)))"),
    ),
    "an environment variable": (lambda _: with_environment("1"), lambda _: with_environment("2")),
    "arguments of a partial function": (
        lambda _: Net(functools.partial(functional.leaky_relu, negative_slope=0.1)),
        lambda _: Net(functools.partial(functional.leaky_relu, negative_slope=0.9)),
    ),
}


def run(make, path):
    """The scores and the directory of a model with fixed initial parameters, and whether it was trained."""
    torch.manual_seed(0)
    rows: list[Progress] = []
    scores = recombine.benchmark(
        make(path), TASK, training=TRAINING, evaluation_instances=60, out=path, watch=rows.append
    )
    return dict(scores), scores.run.path, bool(rows)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_trained(change, tmp_path, monkeypatch):
    monkeypatch.setenv("OWN_SCALE", "0")
    first, second = (run(make, tmp_path) for make in CHANGES[change])
    assert second[2]
    assert second[1] != first[1]


REUSED = {
    "file": lambda _: Net(scaled(2)),
    "cell": lambda _: from_cell(),
    "import": lambda path: imported(path, "super().forward(x)"),
    "attention of the package": lambda _: nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 20)),
        nn.Linear(20, 8),
        nn.TransformerEncoderLayer(8, 2, 8),
        nn.Linear(8, 1),
        nn.Flatten(),
    ),
    "task": lambda _: default_run("fuzzy-logic", "tiny").build_model(),
}


@pytest.mark.parametrize("model", [name for name in REUSED if name != "task"])
def test_the_same_model_is_reused_and_that_is_logged(model, tmp_path, caplog):
    first = run(REUSED[model], tmp_path)
    assert caplog.records == []
    second = run(REUSED[model], tmp_path)
    assert not second[2]
    assert second[:2] == first[:2]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{first[1]}: this module was trained before; its parameters and scores are loaded"


def test_what_cannot_be_identified_is_trained_and_that_is_logged(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    model = lambda _: hooked(Net(), 1)  # noqa: E731
    assert [run(model, tmp_path)[2] for _ in range(2)] == [True, True]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["Net will be trained even if it was trained before: it has hooks"] * 2


def test_the_identity_is_the_same_in_every_process():
    code = (
        "import json, torch, test_identity as cases\n"
        "from pathlib import Path\n"
        "from tempfile import mkdtemp\n"
        "from recombine.training.identity import identify_module\n"
        "names = {}\n"
        "for name, make in cases.REUSED.items():\n"
        "    torch.manual_seed(0)\n"
        "    names[name] = identify_module(make(Path(mkdtemp())))\n"
        "print(json.dumps(names))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    shown = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert json.loads(shown[0]) == json.loads(shown[1])
