"""Feed-forward layers against their formulas, token by token."""

import pytest
import torch
from torch.nn import functional

from recombine.foundation.errors import InputError
from recombine.models.transformer import FEEDFORWARDS, MLP, MixtureOfExperts, SwiGLU, build_feedforward


def randomise(layer):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer.double()


def draw_tokens(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()


def plain_mlp(x, input_weight, input_bias, output_weight, output_bias):
    return output_weight @ functional.gelu(input_weight @ x + input_bias, approximate="tanh") + output_bias


def test_mlp_is_its_formula():
    layer, x = randomise(MLP(4, 6)), draw_tokens(4)
    expected = plain_mlp(x, layer.input.weight, layer.input.bias, layer.output.weight, layer.output.bias)
    torch.testing.assert_close(layer(x), expected)


def test_swiglu_is_its_formula():
    layer, x = randomise(SwiGLU(4, 6)), draw_tokens(4)
    gate, up = layer.gate_and_up.weight.chunk(2)
    torch.testing.assert_close(layer(x), layer.output.weight @ ((gate @ x) * torch.sigmoid(gate @ x) * (up @ x)))


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_mixture_of_experts_equals_routing_token_by_token_in_values_and_gradients(top_k):
    layer, x = randomise(MixtureOfExperts(4, 6, num_experts=4, top_k=top_k)), draw_tokens(2, 3, 4).requires_grad_()
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


def test_route_chooses_exactly_top_k_even_among_ties():
    layer = MixtureOfExperts(4, 6, num_experts=5, top_k=2)
    weights = layer.route(torch.zeros(3, 4))
    assert torch.equal((weights > 0).sum(dim=-1), torch.full((3,), 2))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3))


def test_initial_weights_are_lecun_normal_and_biases_zero():
    torch.manual_seed(0)
    layers = [build_feedforward(name, 64, 256) for name in FEEDFORWARDS]
    for name, parameter in (pair for layer in layers for pair in layer.named_parameters()):
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert parameter.var().item() == pytest.approx(1 / parameter.shape[-1], rel=0.15), name


def test_number_of_parameters():
    sizes = {name: sum(p.numel() for p in build_feedforward(name, 4, 6).parameters()) for name in FEEDFORWARDS}
    mlp = 4 * 6 + 6 + 6 * 4 + 4
    assert sizes == {"mlp": mlp, "swiglu": 3 * 4 * 6, "mixture_of_experts": 4 * mlp + 4 * 4}


@pytest.mark.parametrize("name", FEEDFORWARDS)
def test_every_layer_keeps_shapes_and_takes_bf16(name):
    layer, x = build_feedforward(name, 4, 6), draw_tokens(2, 3, 4).float()
    expected = layer(x)
    assert expected.shape == x.shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x).float(), expected, rtol=0.1, atol=0.1)


def test_bad_configuration_is_named():
    with pytest.raises(InputError, match="unknown feed-forward layer 'mpl': expected one of mlp, swiglu"):
        build_feedforward("mpl", 4, 6)
    with pytest.raises(InputError, match="top_k is 5: expected at most num_experts = 4"):
        MixtureOfExperts(4, 6, top_k=5)
    for layer in FEEDFORWARDS.values():
        with pytest.raises(InputError, match="hidden_dim is 0: expected a whole number of at least 1"):
            layer(4, 0)
