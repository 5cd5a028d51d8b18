"""Models that are told their task: the perceptron, the hypernetwork, and the transformer with the task as first token."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.inside.collect import collect_activations
from recombine.inside.decode import decode_components
from recombine.models.base import build_model, models_by_kind
from recombine.models.hypernetwork import HypernetworkConfig, HypernetworkTransformerConfig
from recombine.models.language_model import LanguageModelConfig
from recombine.models.mlp import MLPConfig
from recombine.models.transformer import TaskTransformerConfig, TransformerConfig, count_parameters
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.grids.goal import GoalGrid
from recombine.tasks.grids.preference import PreferenceGrid
from recombine.tasks.modular.hyperteacher import Hyperteacher

TASK = Hyperteacher(num_modules=6, num_active=2, x_dim=3, teacher_dim=5, y_dim=4, num_samples=5)
CONFIGS = {
    "mlp": MLPConfig(num_layers=2, hidden_dim=32),
    "hypernetwork": HypernetworkConfig(hidden_dim=16),
    "task_transformer": TaskTransformerConfig(num_layers=2, embedding_dim=16, kqv_dim=16, mlp_dim=32),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_output_of_every_sample_is_predicted(kind):
    model = build_model(CONFIGS[kind], TASK, seed=0)
    batch = TASK.sample("train", 0, batch_size=7)
    predictions = model(batch.inputs)
    assert predictions.shape == batch.targets.shape
    TASK.loss(predictions, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert models_by_kind()[kind] is type(CONFIGS[kind])
    again = build_model(CONFIGS[kind], TASK, seed=0)
    assert torch.equal(again(batch.inputs), predictions)


@pytest.mark.parametrize("kind", CONFIGS)
def test_later_samples_are_not_seen(kind):
    """A prediction may use the task and its own input; the transformer's also earlier ones, none later ones."""
    model = build_model(CONFIGS[kind], TASK, seed=0)
    inputs = TASK.sample("train", 0, batch_size=2).inputs.clone().requires_grad_()
    model(inputs)[:, 2].sum().backward()
    x_gradient = inputs.grad[..., TASK.encoding_dim :].abs().amax(dim=(0, 2))
    assert (x_gradient[3:] == 0).all()
    assert x_gradient[2] > 0
    assert (x_gradient[:2] > 0).all() == (kind == "task_transformer")


def test_the_papers_perceptron():
    model = build_model(MLPConfig(), Hyperteacher(), seed=0)
    assert count_parameters(model) == 32 * 1024 + 3 * 1024**2 + 1024 * 16 + 4 * 1024 + 16
    assert [layer.out_features for layer in model.dense_layers] == [1024, 1024, 1024, 1024, 16]
    for layer in model.dense_layers:
        assert layer.weight.var().item() == pytest.approx(1 / layer.in_features, rel=0.05)


def test_the_perceptron_is_the_plain_definition():
    model: Any = build_model(CONFIGS["mlp"], TASK, seed=0)
    x = TASK.sample("test", 0, batch_size=3).inputs
    first, second, output = model.dense_layers
    expected = output((second((first(x)).relu())).relu())
    torch.testing.assert_close(model(x), expected)


def test_the_hypernetwork_applies_what_it_generates():
    model = build_model(CONFIGS["hypernetwork"], TASK, seed=0)
    inputs = TASK.sample("test", 0, batch_size=3).inputs
    predictions = model(inputs)
    for row in range(3):
        made = model.generate(model.norm(inputs[row, 0, :6]))
        w1, b1, w2, b2 = made.split([3 * 16, 16, 16 * 4, 4])
        expected = (inputs[row, :, 6:] @ w1.view(3, 16) + b1).relu() @ w2.view(16, 4) + b2
        torch.testing.assert_close(predictions[row], expected)


@pytest.mark.parametrize(("x_dim", "hidden_dim"), [(1, 8), (3, 1)])
def test_a_matrix_with_one_row_is_no_bias(x_dim, hidden_dim):
    task = replace(TASK, x_dim=x_dim)
    model = build_model(HypernetworkConfig(hidden_dim=hidden_dim), task, seed=0)
    batch = task.sample("train", 0)
    made = model.generate(model.norm(batch.inputs[:, 0, :6])).split(model.sizes, dim=-1)
    assert [bool(part.any()) for part in made] == [True, False, True, False]
    task.loss(model(batch.inputs), batch).backward()
    assert all(part.any() for part in model.generate.weight.grad.split(model.sizes))


def test_queries_are_normalised_only_if_asked_for():
    config: Any = CONFIGS["task_transformer"]
    plain = replace(config, normalise_queries=False)
    x = TASK.sample("test", 0, batch_size=3).inputs
    normalised, other = (build_model(each, TASK, seed=0) for each in (config, plain))
    assert count_parameters(normalised) - count_parameters(other) == 2 * 2 * 4  # layers, queries and keys, head_dim
    scaled = build_model(config, TASK, seed=0)
    for model in (scaled, other):
        before = model(x)
        with torch.no_grad():
            for block in model.blocks:
                block.attention.qkv_weight[:32] *= 100
        # the norm takes the size out of queries and keys again
        assert torch.allclose(model(x), before, atol=1e-3) == (model is scaled)


@pytest.mark.parametrize(
    ("kind", "sites"),
    [
        ("mlp", {"hidden.0", "hidden.1"}),
        ("hypernetwork", {"code", "hidden.0"}),
        ("task_transformer", {"codes.0", "codes.1", "residual.0", "residual.1", "hidden.0", "hidden.1"}),
    ],
)
def test_strengths_are_decoded_from_every_layer(kind, sites):
    model = build_model(CONFIGS[kind], TASK, seed=0)
    activations = collect_activations(model, TASK.reading(), num_instances=400)
    assert set(activations.by_site) == sites
    assert not activations.binary
    assert activations.labels.shape == (800, 6)
    decoders = decode_components(activations, controlled=False)
    assert {"r2"} <= set(next(iter(decoders.values()))["ood"])
    if kind == "hypernetwork":
        assert decoders["code"]["ood"]["r2"] > 0.8  # a normalised code is nearly z


NO_ENCODING = "which does not encode .*: expected a task whose inputs begin"
HIDDEN = "which reveals earlier answers .* causal=True"


@pytest.mark.parametrize(
    ("config", "task", "reason"),
    [
        (HypernetworkConfig(), FuzzyLogic(), NO_ENCODING),
        (TaskTransformerConfig(), FuzzyLogic(), NO_ENCODING),
        (HypernetworkTransformerConfig(), FuzzyLogic(), "which lets queries attend to one another"),
        (
            LanguageModelConfig(),
            FuzzyLogic(),
            "which has inputs of .* features: expected a task whose inputs are numbers",
        ),
        (TaskTransformerConfig(causal=False), PreferenceGrid(), HIDDEN),
        (TransformerConfig(), GoalGrid(), HIDDEN),  # the next observation shows the last action
        (TaskTransformerConfig(), Hyperteacher(train_samples=2), "which has 2 tokens in training and 16 in evaluation"),
    ],
)
def test_a_task_that_a_model_does_not_fit(config, task, reason):
    with pytest.raises(InputError, match=f"model '{config.kind}' does not fit task '{task.name}', {reason}"):
        build_model(config, task, seed=0)
