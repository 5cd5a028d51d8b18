"""The schedule at its corners, and who is spared from decay."""

from dataclasses import replace

import pytest
from torch import nn

from recombine.attention.layer import RelativeBias
from recombine.training.config import TrainingConfig, build_optimizer

COSINE = TrainingConfig(learning_rate=2.0, steps=1_000, warmup_steps=100, final_fraction=0.1)


@pytest.mark.parametrize(("step", "rate"), [(0, 0.0), (50, 1.0), (100, 2.0), (550, 1.1), (1_000, 0.2), (2_000, 0.2)])
def test_cosine(step, rate):
    assert COSINE.rate_at(step) == pytest.approx(rate)


def test_constant_and_no_warmup():
    assert replace(COSINE, schedule="constant").rate_at(700) == 2.0
    assert replace(COSINE, warmup_steps=0).rate_at(0) == 2.0


def test_decay_spares_parameters_of_one_dimension():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), RelativeBias(2, num_buckets=8, max_distance=8))
    decayed, spared = build_optimizer(model, weight_decay=0.3).param_groups
    assert decayed["weight_decay"] == 0.3
    assert spared["weight_decay"] == 0.0
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[2].table)}
    assert len(spared["params"]) == 3
