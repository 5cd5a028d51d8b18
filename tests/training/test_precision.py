"""bf16: the roundings of the hardware, wherever the products are made."""

import pytest
import torch
from torch.nn import functional

from recombine.models.base import build_model
from recombine.training import trainer
from recombine.training.config import default_run
from recombine.training.trainer import Trainer, rounded_linear, use_precision

CPU = torch.device("cpu")


def test_rounded_products_are_those_of_bf16_tensors():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(64, 32), torch.randn(16, 32), torch.randn(16)
    grad_out = torch.randn(64, 16).bfloat16()

    def differentiate(function, *leaves):
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]

    ours = differentiate(rounded_linear, *(leaf.clone().requires_grad_() for leaf in (x, weight, bias)))
    theirs = differentiate(functional.linear, *(leaf.bfloat16().requires_grad_() for leaf in (x, weight, bias)))
    assert ours[0].dtype == torch.bfloat16
    for mine, other in zip(ours, theirs, strict=True):
        # sums in another order round to the neighbouring number now and then, by half a unit in the last place
        torch.testing.assert_close(mine.float(), other.float(), rtol=2**-7, atol=0.02)
        assert (mine.float() == other.float()).float().mean() > 0.9


@pytest.mark.parametrize("has_instructions", [True, False])
def test_one_step_in_bf16(monkeypatch, has_instructions):
    monkeypatch.setattr(trainer, "multiplies_bf16", lambda: has_instructions)
    config = default_run("fuzzy_logic", "tiny")
    batch = config.task.sample("train", 0, batch_size=8)
    model = build_model(config.model, config.task, seed=0)
    expected = model(batch.inputs)
    with use_precision("bf16", CPU):
        rounded = model(batch.inputs)
    assert rounded.dtype == torch.bfloat16
    assert 0 < (rounded - expected).abs().max() < 0.05
    with use_precision("float32", CPU):
        assert torch.equal(model(batch.inputs), expected)


def test_parameters_and_moments_stay_float32():
    config = default_run("fuzzy_logic", "tiny")
    training = type(config.training)(steps=3, batch_size=8, precision="bf16")
    trained = Trainer(build_model(config.model, config.task, seed=0), config.task, training, "cpu")
    loss = trained.advance()
    assert loss.dtype == torch.float32
    assert {value.dtype for value in trained.state().values()} == {torch.float32}
