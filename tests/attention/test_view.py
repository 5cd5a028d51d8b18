"""Multi-head attention is a hypernetwork: equations 2-5 to rounding, and what one head can generate."""

import pytest
import torch
from torch import nn

from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import ATTENTIONS, Attention
from recombine.attention.view import hypernetwork_view
from recombine.foundation.errors import InputError

E, H, N, L, S = 6, 3, 2, 4, 5
LINEAR = ("softmax", "linear", "linear_rms_head")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def randomise(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module.double()


def reproduce(view, tokens, bias):
    """Equation 5, pair by pair."""
    rows = [
        sum(view.value_matrices[b, q, k] @ tokens[b, k] + view.value_biases[b, q, k] for k in range(tokens.shape[1]))
        + bias
        for b in range(len(tokens))
        for q in range(view.codes.shape[2])
    ]
    return torch.stack(rows).view(len(tokens), -1, len(bias))


@pytest.mark.parametrize("name", LINEAR)
def test_our_attention_equals_its_hypernetwork(name):
    layer, x = randomise(Attention(E, num_heads=H, kqv_dim=12, attention=name)), draw(N, L, E)
    view, (output, codes) = hypernetwork_view(layer, x), layer(x)
    torch.testing.assert_close(view.output, output, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(view.codes, codes, rtol=0, atol=0)
    assert view.value_matrices.shape == (N, L, L, E, E)
    torch.testing.assert_close(reproduce(view, x, layer.output.bias), output, rtol=1e-12, atol=1e-12)
    # equation 4, head by head
    out_weights, value_weights = layer.output.weight.split(4, dim=1), layer.qkv_weight[24:].split(4, dim=0)
    expected = sum(codes[1, h, 2, 3] * out_weights[h] @ value_weights[h] for h in range(H))
    torch.testing.assert_close(view.value_matrices[1, 2, 3], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LINEAR)
def test_cross_attention_with_mask_and_bias(name):
    layer = randomise(Attention(E, num_heads=H, kqv_dim=12, attention=name))
    x, context = draw(N, L, E), draw(N, S, E, seed=1)
    options = {"mask": torch.ones(L, S).bool().tril(1), "bias": draw(H, L, S, seed=2)}
    view = hypernetwork_view(layer, x, context, **options)
    assert view.value_matrices.shape == (N, L, S, E, E)
    torch.testing.assert_close(view.output, layer(x, context, **options)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 7}])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_attention_equals_its_hypernetwork(options, batch_first):
    layer = randomise(nn.MultiheadAttention(E, H, batch_first=batch_first, **options))
    x, context = draw(N, L, E), draw(N, S, options.get("kdim", E), seed=1)
    swap = (lambda t: t) if batch_first else (lambda t: t.transpose(0, 1))
    padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
    view = hypernetwork_view(layer, swap(x), swap(context), key_padding_mask=padding)
    expected, codes = layer(*map(swap, (x, context, context)), key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(view.output, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(view.codes, codes)
    bias = torch.zeros(E).double() if layer.out_proj.bias is None else layer.out_proj.bias
    torch.testing.assert_close(swap(reproduce(view, context, bias)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_heads_are_the_dimensions_of_what_can_be_generated(name, num_heads):
    """One head generates only multiples of one matrix; H heads span H dimensions of matrices."""
    layer = randomise(Attention(E, num_heads=num_heads, kqv_dim=12, attention=name))
    matrices = hypernetwork_view(layer, draw(N, L, E)).value_matrices.reshape(-1, E * E)
    singular_values = torch.linalg.svdvals(matrices)
    assert singular_values[num_heads] < 1e-12 * singular_values[0]
    assert singular_values[num_heads - 1] > 1e-6 * singular_values[0]
    if num_heads == 1:
        multiples = matrices @ matrices[0] / matrices[0].square().sum()
        torch.testing.assert_close(matrices, multiples[:, None] * matrices[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name not in LINEAR])
def test_other_value_networks_are_refused(name):
    for layer in (Attention(E, num_heads=H, kqv_dim=12, attention=name), HypernetworkAttention(E, H, attention=name)):
        with pytest.raises(
            InputError, match=f"'{name}' has no hypernetwork view: expected one of softmax, linear, lin"
        ):
            hypernetwork_view(layer, torch.zeros(N, L, E))


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_without_tokens_are_refused(option):
    with pytest.raises(InputError, match="expected neither, as those keys have no token"):
        hypernetwork_view(nn.MultiheadAttention(E, H, **{option: True}), torch.zeros(L, N, E))
