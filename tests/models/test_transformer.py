"""The transformer: the published number of parameters, the same numbers for less work, codes on request; its feed-forward layers."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from recombine.attention.dispatch import use_kernel
from recombine.attention.layer import ATTENTIONS
from recombine.models.base import build_model
from recombine.models.transformer import (
    FEEDFORWARDS,
    MLP,
    MixtureOfExperts,
    SwiGLU,
    Transformer,
    TransformerConfig,
    count_parameters,
)
from recombine.tasks.fuzzy_logic import FuzzyLogic

TASK = FuzzyLogic()
SMALL: dict[str, Any] = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 32, "num_heads": 4}


def small_model(num_read: int = 1, **changes) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(**{**SMALL, **changes})
    return Transformer(config, input_dim=5, output_dim=3, sequence_length=12, num_read=num_read).double()


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_the_papers_number_of_parameters(attention):
    assert count_parameters(build_model(TransformerConfig(attention=attention), TASK, seed=0)) == 151_265


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_reading_some_tokens_equals_reading_all_and_slicing(attention):
    some, every = small_model(3, attention=attention), small_model(12, attention=attention)
    x = torch.randn(2, 12, 5, dtype=torch.float64)
    predictions, expected = some(x), every(x)[:, -3:]
    torch.testing.assert_close(predictions, expected)
    predictions.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(some.parameters(), every.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("feedforward", FEEDFORWARDS)
@pytest.mark.parametrize("position", ["relative", "rotary", "none"])
def test_every_choice_trains(feedforward, position):
    model = small_model(feedforward=feedforward, position=position)
    model(torch.randn(2, 12, 5, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_codes_on_request():
    model = small_model(2)
    x = torch.randn(3, 12, 5, dtype=torch.float64)
    predictions, codes = model(x, return_codes=True)
    assert torch.equal(predictions, model(x))
    assert [tuple(code.shape) for code in codes] == [(3, 4, 12, 12), (3, 4, 2, 12)]


def test_code_maps_change_the_codes_in_use():
    model = small_model()
    x = torch.randn(3, 12, 5, dtype=torch.float64)
    same = model(x, code_maps=[lambda codes: codes, None])
    assert torch.equal(same, model(x))
    zeroed, codes = model(x, code_maps=[None, torch.zeros_like], return_codes=True)
    assert not torch.allclose(zeroed, model(x))
    assert codes[1].abs().sum() == 0


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_causality_by_zero_gradients(attention):
    model = small_model(12, attention=attention, causal=True)
    x = torch.randn(1, 12, 5, dtype=torch.float64, requires_grad=True)
    for token in (0, 5, 11):
        (gradient,) = torch.autograd.grad(model(x)[0, token].sum(), x)
        assert gradient[0, token + 1 :].abs().sum() == 0
        assert gradient[0, : token + 1].abs().sum(dim=-1).gt(0).all()


def test_initial_parameters_depend_on_the_seed_alone():
    def first(seed: int):
        return next(build_model(TransformerConfig(**SMALL), TASK, seed=seed).parameters())

    state = torch.random.get_rng_state()
    one = first(1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(one, first(1))
    assert not torch.equal(one, first(2))


def randomise(layer):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer.double()


def plain_mlp(x, input_weight, input_bias, output_weight, output_bias):
    return output_weight @ functional.gelu(input_weight @ x + input_bias, approximate="tanh") + output_bias


def test_mlp_is_its_formula():
    layer, x = randomise(MLP(4, 6)), torch.randn(4).double()
    expected = plain_mlp(x, layer.input.weight, layer.input.bias, layer.output.weight, layer.output.bias)
    torch.testing.assert_close(layer(x), expected)


def test_swiglu_is_its_formula():
    layer, x = randomise(SwiGLU(4, 6)), torch.randn(4).double()
    gate, up = layer.gate_and_up.weight.chunk(2)
    torch.testing.assert_close(layer(x), layer.output.weight @ ((gate @ x) * torch.sigmoid(gate @ x) * (up @ x)))


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_mixture_of_experts_equals_routing_token_by_token_in_values_and_gradients(top_k):
    layer, x = (
        randomise(MixtureOfExperts(4, 6, num_experts=4, top_k=top_k)),
        torch.randn(2, 3, 4).double().requires_grad_(),
    )
    rows = []
    for token in x.reshape(-1, 4):
        logits = layer.gate.weight @ token
        chosen = sorted(range(4), key=(-logits).tolist().__getitem__)[:top_k]
        total = sum(logits[expert].exp() for expert in chosen)
        experts = (layer.input_weight, layer.input_bias, layer.output_weight, layer.output_bias)
        rows.append(sum(logits[i].exp() / total * plain_mlp(token, *(part[i] for part in experts)) for i in chosen))
    expected, output = torch.stack(rows).view(2, 3, 4), layer(x)
    torch.testing.assert_close(output, expected)
    leaves = [x, *layer.parameters()]
    gradients = [torch.autograd.grad(out.square().sum(), leaves, allow_unused=True) for out in (output, expected)]
    for name, ours, plain in zip(["x", *dict(layer.named_parameters())], *gradients, strict=True):
        if name == "gate.weight" and top_k == 1:  # one chosen expert always weighs 1
            assert not ours.any()
        else:
            torch.testing.assert_close(ours, plain)


def test_mixture_of_experts_is_the_same_with_an_expert_that_nobody_takes():
    layer, x = randomise(MixtureOfExperts(4, 6, num_experts=4, top_k=2)), torch.rand(2, 3, 4).double()
    with torch.no_grad():
        layer.gate.weight[1] = -100.0
    assert not layer.route(x)[..., 1].any()
    found = []
    for kernel in ("reference", "auto"):
        with use_kernel(kernel):
            out = layer(x)
        found.append((out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
    for plain, routed in zip(*found, strict=True):
        torch.testing.assert_close(routed, plain)


def test_route_chooses_exactly_top_k_even_among_ties():
    layer = MixtureOfExperts(4, 6, num_experts=5, top_k=2)
    weights = layer.route(torch.zeros(3, 4))
    assert torch.equal((weights > 0).sum(dim=-1), torch.full((3,), 2))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3))
