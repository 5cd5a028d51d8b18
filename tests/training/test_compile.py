"""Every layer compiles to one graph, with the same values and gradients."""

import pytest
import torch

from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import Attention, RelativeBias, Rotary
from recombine.models.transformer import FEEDFORWARDS, build_feedforward


@pytest.fixture(autouse=True)
def compilable(unchecked):
    """The type checker of the tests cannot itself be compiled, and each test starts with an empty cache of graphs."""
    torch._dynamo.reset()


def check_compiled(layer, *arguments, **options):
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for function in (layer, compiled):
        output = function(*arguments, **options)
        output = output[0] if isinstance(output, tuple) else output
        results.append((output, torch.autograd.grad(output.square().sum(), list(layer.parameters()))))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("name", ["softmax", "hyla", "hyla_deep"])
def test_attention(name):
    layer = Attention(8, num_heads=2, kqv_dim=4, attention=name)
    check_compiled(layer, torch.randn(2, 5, 8), causal=True, rotate=Rotary(2), bias=torch.randn(2, 1, 1))


def test_relative_bias_at_two_lengths():
    layer = RelativeBias(2, num_buckets=8, max_distance=8)
    check_compiled(layer, 4, 4)
    check_compiled(layer, 2, 9)


@pytest.mark.parametrize("name", FEEDFORWARDS)
def test_feedforward(name):
    check_compiled(build_feedforward(name, 4, 6), torch.randn(2, 3, 4))


@pytest.mark.parametrize("attention", ["softmax", "hyla"])
def test_hypernetwork_attention(attention):
    x = torch.randn(2, 5, 8)
    layer = HypernetworkAttention(8, 2, attention=attention, batch_first=True)
    padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    check_compiled(layer, x, x, x, key_padding_mask=padding)
