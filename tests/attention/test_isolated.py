"""Isolated queries: every fast way gives what the mask defines, and no query sees another."""

from typing import Any

import pytest
import torch

from recombine.attention.dispatch import attend
from recombine.attention.layer import ATTENTIONS, Attention, attend_isolated, isolation_mask
from recombine.models.registry import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.modular.in_context import InContext

CHOICES: dict[str, Any] = {"causal": False, "code_map": None, "return_codes": False, "deep_weight": None}
TASK = InContext(input_size=4, hidden_size=8, num_examples=7, num_queries=4)


def test_the_mask_by_hand():
    expected = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]).bool()
    assert torch.equal(isolation_mask(4, 4, 2), expected)
    assert torch.equal(isolation_mask(2, 4, 2), expected[2:])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_queries", [9, 4, 2])
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name != "hyla_deep"])
def test_fast_ways_agree_with_the_mask_in_values_and_gradients(name, num_queries, with_bias):
    torch.manual_seed(0)
    normalisation, value_network = ATTENTIONS[name]
    q, k, v = (torch.randn(3, length, 4, 5, requires_grad=True) for length in (num_queries, 9, 9))
    bias = torch.randn(4, num_queries, 9) if with_bias else None
    given: dict[str, Any] = {"normalisation": normalisation, "value_network": value_network}
    out, codes = attend_isolated(q, k, v, num_isolated=4, bias=bias, **given, **CHOICES)
    expected, _ = attend(q, k, v, bias=bias, mask=isolation_mask(num_queries, 9, 4), kernel="reference", **given)
    assert codes is None
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)
    weight = torch.randn_like(out)
    grads, expected_grads = (torch.autograd.grad((each * weight).sum(), (q, k, v)) for each in (out, expected))
    for mine, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_codes_come_with_zeros_for_what_is_hidden(name):
    layer = Attention(8, num_heads=2, kqv_dim=8, attention=name)
    x = torch.randn(2, 6, 8)
    plain, nothing = layer(x, num_isolated=3, return_codes=False)
    out, codes = layer(x, num_isolated=3)
    assert nothing is None
    torch.testing.assert_close(plain, out, atol=1e-5, rtol=1e-5)
    hidden = ~isolation_mask(6, 6, 3)
    assert (codes[:, :, hidden] == 0).all()
    assert (codes[:, :, ~hidden] != 0).all()


@pytest.mark.parametrize("position", ["none", "relative"])
@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_a_query_is_answered_as_if_it_were_alone(name, position):
    config = TransformerConfig(
        attention=name, num_layers=3, embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=2, position=position
    )
    model = build_model(config, TASK, seed=0)
    inputs = TASK.sample("test", 0, batch_size=5).inputs.requires_grad_()
    predictions = model(inputs)
    (gradient,) = torch.autograd.grad(predictions[:, 1].sum(), inputs)
    seen = gradient.abs().sum(dim=(0, 2)) > 0
    assert seen.tolist() == [True] * 7 + [False, True, False, False]
    if position == "none":
        alone = InContext(input_size=4, hidden_size=8, num_examples=7, num_queries=1)
        single = build_model(config, alone, seed=0)
        torch.testing.assert_close(single(inputs[:, [*range(7), 8]]), predictions[:, 1:2], atol=1e-5, rtol=1e-5)
