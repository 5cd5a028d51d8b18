"""The linear hypernetwork over shared modules."""

import math
from typing import Any

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.tasks.modular.teacher import draw_teacher

SIZES: dict[str, Any] = {"num_modules": 5, "input_dim": 6, "hidden_dim": 7, "output_dim": 3}


@pytest.mark.parametrize("distribution", ["truncated_normal", "normal", "uniform"])
def test_weights_have_the_variance_asked_for(distribution):
    teacher = draw_teacher(
        "test", 0, num_modules=40, input_dim=64, hidden_dim=64, output_dim=64, distribution=distribution
    )
    for weights in (teacher.weights[0], teacher.readout):
        assert weights.var().item() == pytest.approx(math.sqrt(3) / 64, rel=0.03)
        assert abs(weights.mean().item()) < 0.01
    assert 0 <= teacher.biases[0].min() < 0.01 < 0.49 < teacher.biases[0].max() < 0.5


def test_the_truncated_normal_is_cut():
    weights = draw_teacher("t", num_modules=40, input_dim=64, hidden_dim=64, output_dim=1).weights[0]
    normal = draw_teacher(
        "t", num_modules=40, input_dim=64, hidden_dim=64, output_dim=1, distribution="normal"
    ).weights[0]
    cut = 2 / 0.8796256610342398 * math.sqrt(math.sqrt(3) / 64)
    assert 0.999 * cut < weights.abs().max() <= cut < normal.abs().max()


def test_the_key_decides_and_more_modules_keep_the_first():
    first, again = draw_teacher("test", 0, **SIZES), draw_teacher("test", 0, **SIZES)
    other = draw_teacher("test", 1, **SIZES)
    more = draw_teacher("test", 0, **{**SIZES, "num_modules": 8})
    assert torch.equal(first.weights[0], again.weights[0])
    assert not torch.equal(first.weights[0], other.weights[0])
    assert torch.equal(first.weights[0], more.weights[0][:5])
    assert torch.equal(first.readout, more.readout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_modules": 0}, "num_modules is 0"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"distribution": "cauchy"}, "truncated_normal, normal, uniform"),
        ({"weight_scale": -1.0}, "weight scale -1.0"),
        ({"bias_range": (1.0, 0.0)}, "biases from 1.0 to 0.0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        draw_teacher("test", 0, **{**SIZES, **change})
