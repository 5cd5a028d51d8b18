"""The linear hypernetwork over shared modules."""

import math
from typing import Any

import pytest
import torch

from recombine.tasks.modular.teacher import draw_teacher

SIZES: dict[str, Any] = {"num_modules": 5, "widths": (6, 7, 3)}


@pytest.mark.parametrize("distribution", ["truncated_normal", "normal"])
def test_weights_have_the_variance_asked_for(distribution):
    teacher = draw_teacher("test", 0, num_modules=40, widths=(64, 64, 64), distribution=distribution)
    for weights in (teacher.weights[0], teacher.readout):
        assert weights.var().item() == pytest.approx(math.sqrt(3) / 64, rel=0.03)
        assert abs(weights.mean().item()) < 0.01
    assert 0 <= teacher.biases[0].min() < 0.01 < 0.49 < teacher.biases[0].max() < 0.5
    cut = 2 / 0.8796256610342398 * math.sqrt(math.sqrt(3) / 64)
    largest = teacher.weights[0].abs().max()
    assert 0.999 * cut < largest <= cut if distribution == "truncated_normal" else largest > cut


def test_the_key_decides_and_more_modules_keep_the_first():
    first, again = draw_teacher("test", 0, **SIZES), draw_teacher("test", 0, **SIZES)
    other = draw_teacher("test", 1, **SIZES)
    more = draw_teacher("test", 0, **{**SIZES, "num_modules": 8})
    assert torch.equal(first.weights[0], again.weights[0])
    assert not torch.equal(first.weights[0], other.weights[0])
    assert torch.equal(first.weights[0], more.weights[0][:5])
    assert torch.equal(first.readout, more.readout)
