"""The attention layer: its parameters, masks and contexts, isolated queries, the scale of its output, and positions."""

from fractions import Fraction
from typing import Any, get_args

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from attention_cases import define
from recombine.attention.dispatch import attend, use_kernel
from recombine.attention.hyla import HypernetworkAttention, convert
from recombine.attention.layer import (
    ATTENTIONS,
    OUTPUT_SCALES,
    Attention,
    AttentionName,
    RelativeBias,
    Rotary,
    attend_isolated,
    choose_output_scale,
    count_visible,
    isolation_mask,
    relative_bucket,
    scale_output,
)
from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.modular.in_context import InContext

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


@pytest.mark.parametrize("name", MAIN)
def test_key_padding_equals_a_shorter_sequence(name):
    layer, x = build(name), draw_tokens()
    padding = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()[:, None, None, :]
    output, codes = layer(x, mask=padding)
    expected, expected_codes = layer(x[1:, :3])
    torch.testing.assert_close(output[1:, :3], expected)
    torch.testing.assert_close(codes[1:, :, :3, :3], expected_codes)
    torch.testing.assert_close(output[:1], layer(x[:1])[0])


@pytest.mark.parametrize("name", ["softmax", "hyla", "hyla_deep"])
@pytest.mark.parametrize("num_queries", [1, 2, TOKENS])
def test_fewer_queries_equal_the_end_of_the_full_result(name, num_queries):
    layer, x = build(name), draw_tokens()
    bias, rotary = RelativeBias(HEADS, num_buckets=TOKENS, max_distance=TOKENS).double(), Rotary(KQV // HEADS)
    full = layer(x, bias=bias(TOKENS, TOKENS), causal=True, rotate=rotary)
    last = layer(x[:, -num_queries:], x, bias=bias(num_queries, TOKENS), causal=True, rotate=rotary)
    torch.testing.assert_close(last[0], full[0][:, -num_queries:])
    torch.testing.assert_close(last[1], full[1][:, :, -num_queries:])


CALL: dict[str, Any] = {"causal": False, "code_map": None, "return_codes": False, "deep_weight": None}
TASK = InContext(input_size=4, hidden_size=8, num_examples=7, num_queries=4)


@pytest.mark.parametrize("kernel", ["auto", "reference", "chunked"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_padding_holds_does_not_change_a_bit(name, kernel):
    torch.manual_seed(0)
    layer, x = Attention(16, num_heads=4, kqv_dim=16, attention=name), torch.randn(2, 40, 16)
    mask = torch.arange(40) < torch.tensor([[[[40]]], [[[23]]]])
    other = x.clone()
    other[1, 23:] = 3 * torch.randn(17, 16)
    with use_kernel(kernel):
        outputs = [layer(tokens, mask=mask, return_codes=False)[0] for tokens in (x, other)]
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1, :23], outputs[1][1, :23])


def test_the_isolation_mask_by_hand():
    expected = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]).bool()
    assert torch.equal(isolation_mask(4, 4, 2), expected)
    assert torch.equal(isolation_mask(2, 4, 2), expected[2:])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_queries", [9, 4, 2])
@pytest.mark.parametrize("name", [name for name in ATTENTIONS if name != "hyla_deep"])
def test_isolated_queries_agree_with_the_mask_in_values_and_gradients(name, num_queries, with_bias):
    torch.manual_seed(0)
    normalisation, value_network = ATTENTIONS[name]
    q, k, v = (torch.randn(3, length, 4, 5, requires_grad=True) for length in (num_queries, 9, 9))
    bias = torch.randn(4, num_queries, 9) if with_bias else None
    given: dict[str, Any] = {"normalisation": normalisation, "value_network": value_network}
    out, codes = attend_isolated(q, k, v, num_isolated=4, bias=bias, **given, **CALL)
    expected = define(q, k, v, bias=bias, mask=isolation_mask(num_queries, 9, 4), **given)
    assert codes is None
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)
    weight = torch.randn_like(out)
    grads, expected_grads = (torch.autograd.grad((each * weight).sum(), (q, k, v)) for each in (out, expected))
    for mine, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


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


def test_each_scale():
    heads = torch.randn(2, 3, 4, 5)
    assert scale_output(heads, "none", 7) is heads
    torch.testing.assert_close(scale_output(heads, "keys", 7), heads / 7)
    torch.testing.assert_close(scale_output(heads, "sqrt_keys", 7), heads / 7**0.5)
    norm = scale_output(1000 * heads, "norm", 7)
    torch.testing.assert_close(norm.square().mean(dim=(2, 3)), torch.ones(2, 3))
    assert scale_output(heads.bfloat16(), "norm", 7).dtype == torch.bfloat16


def test_hidden_keys_do_not_count():
    mask = torch.rand(2, 1, 3, 6) < 0.5
    mask[0, 0, 1] = False
    expected = (mask & torch.ones(3, 6).tril(3).bool()).sum(dim=-1)
    assert count_visible(3, 6, mask, causal=True).tolist() == expected.tolist()
    assert count_visible(3, 6, None, causal=True)[0, 0].tolist() == [4, 5, 6]
    assert count_visible(3, 6, torch.tensor(True))[0, 0].tolist() == [6, 6, 6]
    heads = torch.zeros(2, 3, 4, 5)
    for scale in OUTPUT_SCALES:
        assert not scale_output(heads, scale, 6, mask).any()  # no NaN for a query without keys


@pytest.mark.parametrize("scale", ["keys", "sqrt_keys", "norm"])
def test_attention_scales_what_the_kernel_returns(scale):
    x = torch.randn(2, 6, 8)
    layer = Attention(8, num_heads=2, kqv_dim=4, output_scale=scale)
    q, k, v = layer.project(x)
    out, _ = attend(q, k, v, normalisation="rms_head", value_network="hyper_relu", causal=True)
    expected = layer.output(scale_output(out, scale, 6, causal=True).flatten(-2))
    torch.testing.assert_close(layer(x, causal=True)[0], expected)


@pytest.mark.parametrize("scale", ["keys", "norm"])
def test_isolated_queries_count_what_they_see(scale):
    x = torch.randn(1, 6, 8)
    layer, single = (Attention(8, num_heads=2, kqv_dim=4, output_scale=scale, num_isolated=number) for number in (2, 1))
    single.load_state_dict(layer.state_dict())
    together = layer(x, return_codes=False)[0]
    alone = single(x[:, [0, 1, 2, 3, 5]], return_codes=False)[0]
    torch.testing.assert_close(together[:, -1], alone[:, -1])


def test_default_scales(unchecked):
    assert Attention(8, num_heads=2, kqv_dim=4).output_scale == "none"
    assert HypernetworkAttention(8, 2).output_scale == "none"
    assert convert(nn.MultiheadAttention(8, 2)).output_scale == "norm"
    assert convert(nn.MultiheadAttention(8, 2), "softmax").output_scale == "none"
    assert convert(nn.MultiheadAttention(8, 2), output_scale="none").output_scale == "none"
    assert choose_output_scale(None, "softmax_rms_head") == "norm"
    for build in (Attention, HypernetworkAttention):
        sizes: dict[str, Any] = {"num_heads": 2, "kqv_dim": 4} if build is Attention else {"num_heads": 2}
        with pytest.raises(InputError, match=r"output_scale 'big'.*none, sqrt_keys, keys, norm"):
            build(8, **sizes, output_scale="big")
    with pytest.raises(InputError, match="output_scale 'big'"):
        convert(nn.MultiheadAttention(8, 2), output_scale="big")


def test_a_converted_encoder_starts_where_the_original_does():
    """A pre-norm encoder without a final norm, 512 tokens: without a scale, the first outputs are tens of times too large."""
    x = torch.randn(2, 512, 32)

    def deviation(output_scale):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        if output_scale != "softmax":
            convert(encoder, output_scale=output_scale)
        with torch.no_grad():
            return (encoder(x) - x).std().item()

    assert deviation("none") > 20 * deviation("softmax")
    assert deviation(None) < 5 * deviation("softmax")


def exact_bucket(distance, num_buckets, max_distance):
    """Count the borders reached, in rational numbers: no logarithm, no rounding."""
    num_exact = num_buckets // 2
    if distance < num_exact:
        return distance
    steps = num_buckets - num_exact
    reached, wanted = Fraction(distance, num_exact) ** steps, Fraction(max_distance, num_exact)
    return num_exact + sum(reached >= wanted**step for step in range(1, steps))


@example(num_buckets=9, distance=8, further=124)  # in float64, log(8/4) / log(128/4) * 5 is less than 1
@given(num_buckets=st.integers(2, 40), distance=st.integers(0, 225), further=st.integers(1, 200))
def test_buckets_are_exact_at_every_border(num_buckets, distance, further):
    max_distance = num_buckets // 2 + further
    bucket = relative_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
    assert bucket == exact_bucket(distance, num_buckets, max_distance)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(6, 6), (2, 6), (1, 9), (12, 12)])
def test_bias_is_the_table_at_the_bucket_with_queries_at_the_end(num_queries, num_keys):
    bias = RelativeBias(3, num_buckets=8, max_distance=8)
    values = bias(num_queries, num_keys)
    assert values.shape == (3, num_queries, num_keys)
    for query in range(num_queries):
        for key in range(num_keys):
            distance = max(num_keys - num_queries + query - key, 0)
            expected = bias.table[relative_bucket(distance, num_buckets=8, max_distance=8)]
            assert torch.equal(values[:, query, key], expected)


def draw_heads(num_tokens, seed=0, dtype=torch.float64):
    return torch.randn(2, num_tokens, 3, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_rotary_turns_each_pair_by_its_angle():
    q = draw_heads(4)
    turned, _ = Rotary(8, base=100.0)(q, q)
    for position in range(4):
        for pair in range(4):
            before = torch.complex(q[:, position, :, pair], q[:, position, :, pair + 4])
            after = torch.complex(turned[:, position, :, pair], turned[:, position, :, pair + 4])
            angle = torch.tensor(position * 100.0 ** (-2 * pair / 8), dtype=torch.float64)
            torch.testing.assert_close(after, before * torch.polar(torch.ones_like(angle), angle))


def test_rotary_angles_survive_bf16():
    q = torch.ones(1, 400, 1, 8, dtype=torch.bfloat16)
    turned, _ = Rotary(8).to(torch.bfloat16)(q, q)
    expected, _ = Rotary(8)(q.double(), q.double())
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.double(), expected, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attention(12, num_heads=4, kqv_dim=10), "kqv_dim 10 is not divisible by num_heads 4"),
        (lambda: Attention(12, num_heads=4, kqv_dim=8, attention="hylo"), "unknown attention 'hylo': expected one of"),
        (lambda: Attention(12, num_heads=0, kqv_dim=8), "num_heads is 0: expected a whole number of at least 1"),
        (lambda: Rotary(3), "head_dim is 3: expected an even number"),
        (lambda: RelativeBias(2, num_buckets=8, max_distance=4), r"max_distance is 4: expected more than num_buckets"),
        (lambda: RelativeBias(2, num_buckets=0, max_distance=4), "num_buckets is 0: expected a whole number"),
    ],
)
def test_bad_configuration_is_named(build, message):
    with pytest.raises(InputError, match=message):
        build()
