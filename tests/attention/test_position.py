"""T5 buckets against the plain formula, alignment of queries, and the rotation."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recombine.attention.position import RelativeBias, Rotary, relative_bucket
from recombine.foundation.errors import InputError


def plain_bucket(distance, num_buckets, max_distance):
    """The formula of T5, in float64."""
    num_exact = num_buckets // 2
    if distance < num_exact:
        return distance
    ratio = math.log(distance / num_exact) / math.log(max_distance / num_exact)
    return min(num_exact + math.floor(ratio * (num_buckets - num_exact)), num_buckets - 1)


def exact_bucket(distance, num_buckets, max_distance):
    """Count the borders reached, in rational numbers: no logarithm, no rounding."""
    num_exact = num_buckets // 2
    if distance < num_exact:
        return distance
    steps = num_buckets - num_exact
    reached, wanted = Fraction(distance, num_exact) ** steps, Fraction(max_distance, num_exact)
    return num_exact + sum(reached >= wanted**step for step in range(1, steps))


@pytest.mark.parametrize("length", [2, 16, 32, 36, 64, 96])
def test_buckets_of_the_paper_equal_the_plain_formula(length):
    for distance in range(3 * length):
        bucket = relative_bucket(distance, num_buckets=length, max_distance=length)
        assert bucket == plain_bucket(distance, length, length), distance


@given(st.integers(2, 40), st.integers(1, 200), st.data())
def test_buckets_are_exact_at_every_border(num_buckets, further, data):
    max_distance = num_buckets // 2 + further
    distance = data.draw(st.integers(0, max_distance + 5))
    bucket = relative_bucket(distance, num_buckets=num_buckets, max_distance=max_distance)
    assert bucket == exact_bucket(distance, num_buckets, max_distance)


@pytest.mark.parametrize(("distance", "bucket"), [(8, 5), (16, 6), (64, 8)])
def test_whole_numbers_decide_where_float64_misses_a_border(distance, bucket):
    """log(8/4) / log(128/4) * 5 is 1; in float64 it is 0.9999999999999999."""
    assert plain_bucket(distance, 9, 128) == bucket - 1
    assert relative_bucket(distance, num_buckets=9, max_distance=128) == bucket


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


def test_later_keys_share_bucket_zero():
    values = RelativeBias(2, num_buckets=8, max_distance=8)(8, 8)
    assert torch.equal(values[:, 0, 7], values[:, 5, 5])
    assert not torch.equal(values[:, 7, 0], values[:, 5, 5])


def test_table_has_variance_one_over_buckets_and_is_all_there_is_to_save():
    torch.manual_seed(0)
    bias = RelativeBias(200, num_buckets=100, max_distance=100)
    assert list(bias.state_dict()) == ["table"]
    assert bias.table.var().item() == pytest.approx(0.01, rel=0.05)
    assert bias.to(torch.bfloat16).buckets.dtype == torch.int64


def test_bias_follows_its_table_to_another_device():
    bias = RelativeBias(2, num_buckets=8, max_distance=8)
    bias(4, 4)
    assert bias.to("meta")(4, 4).device.type == "meta"


def test_one_bucket_serves_every_distance():
    values = RelativeBias(2, num_buckets=1, max_distance=1)(4, 4)
    assert torch.equal(values, values[:, :1, :1].expand_as(values))


def draw_heads(num_tokens, seed=0, dtype=torch.float64):
    return torch.randn(2, num_tokens, 3, 8, generator=torch.Generator().manual_seed(seed)).to(dtype)


def score(q, k):
    return torch.einsum("bqhd,bkhd->bhqk", q, k)


def test_rotary_turns_each_pair_by_its_angle():
    q = draw_heads(4)
    turned, _ = Rotary(8, base=100.0)(q, q)
    for position in range(4):
        for pair in range(4):
            before = torch.complex(q[:, position, :, pair], q[:, position, :, pair + 4])
            after = torch.complex(turned[:, position, :, pair], turned[:, position, :, pair + 4])
            angle = torch.tensor(position * 100.0 ** (-2 * pair / 8), dtype=torch.float64)
            torch.testing.assert_close(after, before * torch.polar(torch.ones_like(angle), angle))


def test_rotary_keeps_lengths_and_depends_on_differences_of_positions_only():
    rotary, q, k = Rotary(8), draw_heads(6, seed=1), draw_heads(6, seed=2)
    turned_q, turned_k = rotary(q, k)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    assert not torch.allclose(score(turned_q, turned_k), score(q, k))
    same_q, same_k = q[:, :1].expand_as(q), k[:, :1].expand_as(k)
    scores = score(*rotary(same_q, same_k))
    torch.testing.assert_close(scores[:, :, 1:, 1:], scores[:, :, :-1, :-1])


def test_rotary_aligns_queries_at_the_end():
    rotary, q, k = Rotary(8), draw_heads(6, seed=1), draw_heads(6, seed=2)
    full = rotary(q, k)[0]
    assert torch.equal(rotary(q[:, -2:], k)[0], full[:, -2:])
    assert torch.equal(rotary(q[:, 1:3], k, query_offset=1)[0], full[:, 1:3])


def test_rotary_angles_survive_bf16():
    q = torch.ones(1, 400, 1, 8, dtype=torch.bfloat16)
    turned, _ = Rotary(8).to(torch.bfloat16)(q, q)
    expected, _ = Rotary(8)(q.double(), q.double())
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.double(), expected, rtol=0, atol=0.01)


def test_bad_configuration_is_named():
    with pytest.raises(InputError, match="head_dim is 3: expected an even number"):
        Rotary(3)
    with pytest.raises(InputError, match="max_distance is 4: expected more than num_buckets // 2 = 4"):
        RelativeBias(2, num_buckets=8, max_distance=4)
    with pytest.raises(InputError, match="num_buckets is 0: expected a whole number of at least 1"):
        RelativeBias(2, num_buckets=0, max_distance=4)
