"""Measurements of a run beyond its probe: gradients between compositions, decodability of layers, fitted codes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.hypernetwork import HypernetworkTransformerConfig
from recombine.models.transformer import TransformerConfig
from recombine.tasks.modular.in_context import InContext
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run
from recombine_papers.in_context.measures import (
    composition_gradients,
    fit_code,
    measure_fitted_code,
    measure_gradients,
    track_gradients,
)

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


class Shift(nn.Module):
    """Predicts a constant: its gradient is twice the error, the same for all compositions whose means agree."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        self.shift = nn.Parameter(torch.tensor(100.0))

    def forward(self, inputs):
        return self.shift.expand(len(inputs), self.task.num_queries, self.task.output_size)


def test_gradients_that_agree_have_no_variance():
    """Far from every target, all compositions pull a constant the same way."""
    found = measure_gradients(Shift(TASK), TASK, num_instances=600)
    assert found["variance_share"] == pytest.approx(0, abs=1e-3)
    assert found["transfer"] == pytest.approx(1, abs=1e-2)


class Table(nn.Module):
    """One constant for each training composition, which it knows from the strengths hidden in the first example."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        self.values = nn.Parameter(torch.full((len(task.split.train),), 100.0))

    def forward(self, inputs):
        number = inputs[:, 0, 0].long()
        return self.values[number][:, None, None].expand(-1, self.task.num_queries, self.task.output_size)


def test_gradients_that_have_nothing_in_common_are_all_variance(monkeypatch):
    sample = InContext.sample

    def sample_with_number(self, *arguments, **choices):
        batch = sample(self, *arguments, **choices)
        batch.inputs[:, 0, 0] = batch.composition % 6
        return batch

    monkeypatch.setattr(InContext, "sample", sample_with_number)
    assert measure_gradients(Table(TASK), TASK, num_instances=600)["variance_share"] == pytest.approx(1, abs=1e-6)


def test_a_compositions_gradient_is_that_of_its_rows():
    model = build_model(SMALL, TASK, seed=0)
    gradients = composition_gradients(model, TASK, "test", 60, 0)
    batch = TASK.sample("test", 10**6, batch_size=60)
    rows = batch.composition == 2
    loss = (model(batch.inputs[rows]) - batch.targets[rows]).square().mean()
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(gradients[2].float(), expected, atol=1e-5, rtol=1e-4)
    assert len(gradients) == 6


def small_run(**training):
    return RunConfig(task=TASK, model=SMALL, training=TrainingConfig(batch_size=8, **{"steps": 20, **training}))


def test_the_twin_of_a_run_is_the_run(tmp_path):
    """What is measured at the last step is what the saved run has there."""
    config = small_run()
    rows: list[Any] = track_gradients(config, num_points=3)
    assert [row["step"] for row in rows] == [1, 4, 20]
    run = train_run(config, out=tmp_path, device="cpu", evaluation_instances=50)
    model = build_model(config.model, config.task, seed=0)
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    tensors, _ = checkpoint
    model.load_state_dict({name.removeprefix("model/"): each for name, each in tensors.items() if "model/" in name})
    again = measure_gradients(model, TASK, index=2)
    assert again == pytest.approx({name: rows[-1][name] for name in again}, rel=1e-4)


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
