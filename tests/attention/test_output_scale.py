"""Output scales: what each computes, which keys count, and that the default of the papers' models changes nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from recombine.attention.convert import convert
from recombine.attention.dispatch import attend
from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import OUTPUT_SCALES, Attention, choose_output_scale, count_visible, scale_output
from recombine.foundation.errors import InputError


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
    layer = Attention(8, num_heads=2, kqv_dim=4, output_scale=scale)
    together = layer(x, num_isolated=2, return_codes=False)[0]
    alone = layer(x[:, [0, 1, 2, 3, 5]], num_isolated=1, return_codes=False)[0]
    torch.testing.assert_close(together[:, -1], alone[:, -1])


def test_defaults(unchecked):
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
