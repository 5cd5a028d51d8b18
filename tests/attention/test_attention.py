"""The attention layer: its parameters, its masks, its contexts, and the saving in the last block."""

from typing import get_args

import pytest
import torch

from recombine.attention.dense import lecun_normal_
from recombine.attention.dispatch import attend
from recombine.attention.layer import ATTENTIONS, Attention, AttentionName
from recombine.attention.position import RelativeBias, Rotary
from recombine.foundation.errors import InputError

EMBEDDING, HEADS, KQV, TOKENS = 12, 4, 8, 5
MAIN = ("softmax", "linear", "hyla")


def build(attention="hyla", **options):
    torch.manual_seed(0)
    layer = Attention(EMBEDDING, num_heads=HEADS, kqv_dim=KQV, attention=attention, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()  # biases too, or nobody would notice if they were forgotten
    return layer


def draw_tokens(*shape):
    return torch.randn(*(shape or (2, TOKENS, EMBEDDING)), generator=torch.Generator().manual_seed(3)).double()


def test_the_eleven_attentions_are_those_of_table_a1():
    assert len(ATTENTIONS) == 11
    assert tuple(ATTENTIONS) == get_args(AttentionName)
    assert len(set(ATTENTIONS.values())) == 11


@pytest.mark.parametrize("name", ATTENTIONS)
def test_layer_is_projection_kernel_projection(name):
    layer, x = build(name), draw_tokens()
    weights, biases = layer.qkv_weight.chunk(3), layer.qkv_bias.chunk(3)
    q, k, v = ((x @ w.T + b).view(2, TOKENS, HEADS, KQV // HEADS) for w, b in zip(weights, biases, strict=True))
    normalisation, value_network = ATTENTIONS[name]
    heads, codes = attend(
        q, k, v, normalisation=normalisation, value_network=value_network, deep_weight=layer.deep_weight
    )
    expected = heads.reshape(2, TOKENS, KQV) @ layer.output.weight.T + layer.output.bias
    torch.testing.assert_close(layer(x), (expected, codes))


def test_parameters_are_equal_in_number_and_shape():
    shapes = [{name: tuple(p.shape) for name, p in build(name).named_parameters()} for name in MAIN]
    assert shapes[0] == shapes[1] == shapes[2]
    assert shapes[0] == {
        "qkv_weight": (3 * KQV, EMBEDDING),
        "qkv_bias": (3 * KQV,),
        "output.weight": (EMBEDDING, KQV),
        "output.bias": (EMBEDDING,),
    }
    deep = {name: tuple(p.shape) for name, p in build("hyla_deep").named_parameters()}
    assert deep == shapes[0] | {"deep_weight": (HEADS, KQV // HEADS, KQV // HEADS)}


def test_initial_weights_are_lecun_normal_and_biases_zero():
    torch.manual_seed(0)
    layer = Attention(128, num_heads=8, kqv_dim=256, attention="hyla_deep")
    for weight, fan_in in ((layer.qkv_weight, 128), (layer.output.weight, 256), (layer.deep_weight, 32)):
        assert weight.var().item() == pytest.approx(1 / fan_in, rel=0.05)
        assert weight.abs().max().item() <= 2 * fan_in**-0.5 / 0.8796
    assert not layer.qkv_bias.any()
    assert not layer.output.bias.any()
    assert lecun_normal_(torch.empty(300, 300), fan_in=4).var().item() == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize("name", MAIN)
def test_causal_attention_has_zero_gradient_from_later_tokens(name):
    layer, x = build(name), draw_tokens().requires_grad_()
    mask = torch.ones(TOKENS, TOKENS).bool().tril()
    for arguments in ({"causal": True}, {"mask": mask}):
        output, _ = layer(x, **arguments)
        for query in range(TOKENS):
            (gradient,) = torch.autograd.grad(output[:, query].sum(), x, retain_graph=True)
            assert torch.equal(gradient[:, query + 1 :], torch.zeros_like(gradient[:, query + 1 :]))
        assert gradient.abs().amax(dim=(0, 2)).gt(0).all(), "the last query depends on every token"


@pytest.mark.parametrize("name", MAIN)
def test_key_padding_equals_a_shorter_sequence(name):
    layer, x = build(name), draw_tokens()
    padding = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()[:, None, None, :]
    output, codes = layer(x, mask=padding)
    expected, expected_codes = layer(x[1:, :3])
    torch.testing.assert_close(output[1:, :3], expected)
    torch.testing.assert_close(codes[1:, :, :3, :3], expected_codes)
    torch.testing.assert_close(output[:1], layer(x[:1])[0])


@pytest.mark.parametrize("name", MAIN)
def test_bias_per_head_moves_only_its_own_pair(name):
    layer, x = build(name), draw_tokens()
    bias = torch.zeros(HEADS, TOKENS, TOKENS).double()
    plain = layer(x, bias=bias)[1]
    torch.testing.assert_close(plain, layer(x)[1])
    bias[1, 2, 3] = 1.0
    changed = (layer(x, bias=bias)[1] - plain).abs().amax(dim=0) > 1e-12
    touched = {"linear": changed[1, 2, 3:4], "softmax": changed[1, 2], "hyla": changed[:, 2, 3]}[name]
    assert touched.all()
    assert changed.sum() == touched.numel()


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.parametrize("context_dim", [None, EMBEDDING, 7])
def test_cross_attention_treats_keys_as_a_set_and_queries_apart(name, context_dim):
    layer, x = build(name, context_dim=context_dim), draw_tokens()
    context = draw_tokens(2, 3, context_dim or EMBEDDING)
    output, codes = layer(x, context)
    assert output.shape == (2, TOKENS, EMBEDDING)
    assert codes.shape == (2, HEADS, TOKENS, 3)
    torch.testing.assert_close(layer(x, context.flip(1))[0], output)
    torch.testing.assert_close(layer(x[:, 1:2], context)[0], output[:, 1:2])
    assert layer.packed == (context_dim in (None, EMBEDDING))
    if layer.packed:
        torch.testing.assert_close(layer(x, x), layer(x))


@pytest.mark.parametrize("name", ["softmax", "hyla", "hyla_deep"])
@pytest.mark.parametrize("num_queries", [1, 2, TOKENS])
def test_fewer_queries_equal_the_end_of_the_full_result(name, num_queries):
    layer, x = build(name), draw_tokens()
    bias, rotary = RelativeBias(HEADS, num_buckets=TOKENS, max_distance=TOKENS).double(), Rotary(KQV // HEADS)
    full = layer(x, bias=bias(TOKENS, TOKENS), causal=True, rotate=rotary)
    last = layer(x, bias=bias(num_queries, TOKENS), causal=True, rotate=rotary, num_queries=num_queries)
    torch.testing.assert_close(last[0], full[0][:, -num_queries:])
    torch.testing.assert_close(last[1], full[1][:, :, -num_queries:])
    cross = layer(x, x[:, :3], num_queries=num_queries)[0]
    torch.testing.assert_close(cross, layer(x, x[:, :3])[0][:, -num_queries:])


@pytest.mark.parametrize("name", MAIN)
def test_permuting_heads_with_their_weights_changes_nothing(name):
    layer, x = build(name), draw_tokens()
    expected = layer(x)[0]
    order, heads = torch.tensor([2, 0, 3, 1]), (HEADS, KQV // HEADS)
    with torch.no_grad():
        layer.qkv_weight.copy_(layer.qkv_weight.unflatten(0, (3, *heads))[:, order].flatten(0, 2))
        layer.qkv_bias.copy_(layer.qkv_bias.unflatten(0, (3, *heads))[:, order].flatten())
        layer.output.weight.copy_(layer.output.weight.unflatten(1, heads)[:, order].flatten(1))
    torch.testing.assert_close(layer(x)[0], expected)


def test_code_map_reaches_the_kernel():
    layer, x = build("hyla"), draw_tokens()
    output, codes = layer(x, code_map=torch.zeros_like)
    assert not codes.any()
    torch.testing.assert_close(output, layer.output.bias.expand_as(output))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kqv_dim": 10}, "kqv_dim 10 is not divisible by num_heads 4"),
        ({"attention": "hylo"}, "unknown attention 'hylo': expected one of softmax, linear, hyla"),
        ({"num_heads": 0}, "num_heads is 0: expected a whole number of at least 1"),
        ({"context_dim": 0}, "context_dim is 0: expected a whole number of at least 1"),
    ],
)
def test_bad_configuration_is_named(options, message):
    with pytest.raises(InputError, match=message):
        Attention(EMBEDDING, **{"num_heads": HEADS, "kqv_dim": KQV} | options)


def test_bad_calls_are_named():
    with pytest.raises(InputError, match="context is missing: expected one of context_dim = 7 features"):
        build(context_dim=7)(draw_tokens())
    for num_queries in (0, TOKENS + 1):
        with pytest.raises(InputError, match=f"num_queries is {num_queries}: expected 1 to {TOKENS}"):
            build()(draw_tokens(), num_queries=num_queries)
