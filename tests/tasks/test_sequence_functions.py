"""Teachers of sequences against their definitions, token by token in plain Python."""

import math
from typing import Any

import pytest
import torch

from recombine.random import Stream
from recombine.tasks.sequences.functions import draw_rotation, draw_weights
from recombine.tasks.sequences.teacher import SequenceTeacher

CLASSES = ("deep_set", "attention", "ssm", "rnn", "product")


SMALL: dict[str, Any] = {"token_dim": 3, "teacher_dim": 4, "target_dim": 2, "longest": 14}


TASK = SequenceTeacher(**SMALL)


def sigmoid(values: list[float]) -> list[float]:
    return [1 / (1 + math.exp(-value)) for value in values]


def multiply(matrix, vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix.tolist()]


def naive_layers(weights, prefix: str, x: list[float]) -> list[float]:
    for i in range(2):
        if f"{prefix}.{i}.weight" in weights:
            x = multiply(weights[f"{prefix}.{i}.weight"], x)
            x = sigmoid([a + b for a, b in zip(x, weights[f"{prefix}.{i}.bias"].tolist(), strict=True)])
    return x


def naive_weights(scores: list[float], kind: str) -> list[float]:
    if kind == "softmax":
        total = sum(map(math.exp, scores))
        return [math.exp(score) / total for score in scores]
    function = {"sigmoid": lambda s: 1 / (1 + math.exp(-s)), "linear": lambda s: s, "relu": lambda s: max(s, 0)}[kind]
    return [function(score) / len(scores) for score in scores]


def naive_hidden(name: str, weights, tokens: list[list[float]], kind: str) -> list[float]:
    """The hidden state after the last token, by the definition, one number at a time."""
    size = len(next(iter(weights.values())))
    if name in ("deep_set", "product"):
        features = [naive_layers(weights, "embed", x) for x in tokens]
        return [(sum if name == "deep_set" else math.prod)(column) for column in zip(*features, strict=True)]
    if name == "attention":
        query = multiply(weights["query"], tokens[-1])
        keys, values = ([multiply(weights[part], x) for x in tokens] for part in ("key", "value"))
        scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(size) for key in keys]
        mixed = naive_weights(scores, kind)
        return [sum(a * value[i] for a, value in zip(mixed, values, strict=True)) for i in range(size)]
    h = [0.0] * size
    for x in tokens:
        h = [a + b for a, b in zip(multiply(weights["recurrence"], h), multiply(weights["input"], x), strict=True)]
        h = sigmoid(h) if name == "rnn" else h
    return h


@pytest.mark.parametrize("readout", ["linear", "mlp"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "sigmoid") for name in CLASSES] + [("attention", kind) for kind in ("softmax", "linear", "relu")],
)
def test_teachers_follow_their_definitions(name, kind, readout):
    task = SequenceTeacher(teacher=name, teacher_readout=readout, teacher_attention=kind, **SMALL)
    batch = task.sample("ood", 0, batch_size=2)
    for row in range(2):
        length = batch.info["length"][row].item()
        for t in (1, 2, length):
            tokens = batch.inputs[row, :t].tolist()
            hidden = naive_hidden(name, task.weights, tokens, kind)
            assert batch.info["hidden"][row, t - 1].tolist() == pytest.approx(hidden, abs=1e-5)
            assert batch.targets[row, t - 1].tolist() == pytest.approx(
                naive_layers(task.weights, "readout", hidden), abs=1e-5
            )


def test_weights_are_those_of_the_release():
    weights = draw_weights("ssm", "mlp", token_dim=50, hidden_dim=60, target_dim=40, seed=1)
    normal = torch.cat([value.flatten() for name, value in weights.items() if "weight" in name or name == "input"])
    assert normal.std().item() == pytest.approx(0.6, rel=0.03)
    assert abs(normal.mean().item()) < 0.02
    assert all((value == 0).all() for name, value in weights.items() if "bias" in name)
    torch.testing.assert_close(weights["recurrence"] @ weights["recurrence"].T, torch.eye(60), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_recurrent_matrices_are_rotations(size):
    for seed in range(5):
        matrix = draw_rotation(Stream("test", seed, rows=range(size)), size).double()
        assert torch.linalg.det(matrix).item() == pytest.approx(1, abs=1e-4)


def test_the_teacher_depends_on_class_sizes_and_seed_alone():
    for other in ({"longest": 20}, {"support": 0.1}, {"num_sequences": 5}, {"generalise_to": "corners"}):
        changed = SequenceTeacher(**{**SMALL, **other})
        assert all(torch.equal(changed.weights[name], value) for name, value in TASK.weights.items())
    assert not torch.equal(SequenceTeacher(**SMALL, seed=1).weights["embed.0.weight"], TASK.weights["embed.0.weight"])
