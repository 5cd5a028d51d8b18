"""Several steps in one compiled graph are the same training."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.registry import build_model
from recombine.models.transformer import TransformerConfig
from recombine.training.config import TrainingConfig, default_run
from recombine.training.loop import Trainer

TRAINING = TrainingConfig(steps=8, batch_size=8, warmup_steps=2, gradient_clip=0.5)


@pytest.fixture(autouse=True)
def quick_to_compile(monkeypatch, unchecked):
    """Graphs are traced whole but not turned into C++, which takes many seconds."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


def build_trainer(compile_steps=None, **training):
    config = default_run("hyperteacher", "tiny")
    model = build_model(config.model, config.task, seed=0)
    return Trainer(model, config.task, replace(TRAINING, **training), "cpu", compile_steps=compile_steps)


def test_the_same_losses_parameters_and_moments():
    ordinary, together = build_trainer(), build_trainer(compile_steps=3)
    losses = [[trainer.advance_to(step).item() for step in (3, 8)] for trainer in (ordinary, together)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert together.step == ordinary.step == 8  # 3 + 3 together, and 2 that are left
    expected, found = ordinary.state(), together.state()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_training_goes_on_from_a_checkpoint_with_the_same_bits():
    whole = build_trainer(compile_steps=2, gradient_clip=None)
    whole.advance_to(2)
    checkpoint = {name: tensor.clone() for name, tensor in whole.state().items()}
    resumed = build_trainer(compile_steps=2, gradient_clip=None)
    resumed.load_state(checkpoint, 2)
    assert whole.advance_to(4).equal(resumed.advance_to(4))
    assert all(tensor.equal(resumed.state()[name]) for name, tensor in whole.state().items())


def test_what_cannot_be_compiled_together_is_told(monkeypatch):
    with pytest.raises(InputError, match="compile_steps is 0"):
        build_trainer(compile_steps=0)
    run = default_run("fuzzy_logic", "tiny")
    dropping = TransformerConfig(
        num_layers=1, embedding_dim=8, kqv_dim=4, mlp_dim=8, num_heads=2, attention_dropout=0.1
    )
    with pytest.raises(InputError, match="expected no attention_dropout"):
        Trainer(build_model(dropping, run.task, seed=0), run.task, TRAINING, "cpu", compile_steps=2)
    monkeypatch.setattr("recombine.training.loop.can_trace", lambda: False)
    with pytest.raises(InputError, match="cannot compile whole steps"):
        build_trainer(compile_steps=2)
