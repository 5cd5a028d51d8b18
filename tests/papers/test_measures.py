"""Measurements of a run beyond its probe: decodability of layers, fitted codes."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.hypernetwork import HypernetworkTransformerConfig
from recombine.models.transformer import TransformerConfig
from recombine.tasks.modular.in_context import InContext
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run
from recombine_papers.in_context.measures import fit_code, measure_fitted_code

TASK = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
SIZES: dict[str, Any] = {
    "attention": "softmax",
    "num_layers": 1,
    "embedding_dim": 8,
    "kqv_dim": 8,
    "mlp_dim": 8,
    "num_heads": 2,
}
SMALL = TransformerConfig(**SIZES, position="none")


def small_run(**training):
    return RunConfig(task=TASK, model=SMALL, training=TrainingConfig(batch_size=8, **{"steps": 20, **training}))


def test_a_code_that_is_fitted_tells_execution_from_inference(tmp_path):
    """The teacher's own modules behind an inference that knows nothing: the code can be fitted, not inferred."""
    config = HypernetworkTransformerConfig(**SIZES, code_dim=6, execution_dim=TASK.hidden_size)
    run = train_run(replace(small_run(steps=1), model=config), out=tmp_path, evaluation_instances=50)
    _, _, model = load_run(run.path)
    with torch.no_grad():
        model.execution.weight.copy_(TASK.teacher.weights[0].transpose(1, 2))
        model.execution.bias.zero_()
        model.execution.readout.weight.copy_(TASK.teacher.readout.T)
        model.execution.readout.bias.zero_()
    batch = TASK.sample("ood", 0, batch_size=40)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with torch.no_grad():
        answers = model.execution(fit_code(model, batch.inputs), model.queries(batch.inputs))
    error = (answers - batch.targets).square().mean(dim=(1, 2)) / batch.targets.var()
    assert error.median() < 1e-2  # six examples leave some codes open
    assert (model(batch.inputs) - batch.targets).square().mean() / batch.targets.var() > 0.5
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_a_fitted_code_is_measured_of_a_bottleneck_alone(tmp_path):
    config = HypernetworkTransformerConfig(**SIZES, execution_dim=8)
    run = train_run(replace(small_run(), model=config), out=tmp_path, evaluation_instances=50)
    found = measure_fitted_code(run.path, num_instances=100)
    assert found["fitted"]["ood"] > found["inferred"]["ood"]
    vanilla = train_run(small_run(), out=tmp_path, evaluation_instances=50)
    with pytest.raises(InputError, match="kind 'transformer': expected 'hypernetwork_transformer'"):
        measure_fitted_code(vanilla.path)
