"""Streams: pure, disjoint, and the same for whoever makes a part of them."""

import pytest
import torch

from recombine import random as draws
from recombine.random import Stream

GOLDEN_BITS = [[-8335510945538506834, -3499300899384406317, -7818127620248559695]]


def test_golden_numbers():
    """Counter-based integers: they may never change, on any device or version."""
    assert Stream("golden", rows=range(1)).bits(3).tolist() == GOLDEN_BITS


def test_matches_splitmix64_in_python_integers():
    import hashlib

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    key = int.from_bytes(hashlib.sha256(repr(("a", 1, 0)).encode()).digest()[:8], "little")
    expected = [mix((key + counter * 0x9E3779B97F4A7C15) % 2**64) for counter in range(6)]
    assert [bits % 2**64 for bits in Stream("a", 1, rows=range(2)).bits(3).flatten().tolist()] == expected


def test_rows_of_a_part_are_rows_of_the_whole():
    whole, part = Stream("a", rows=range(100)), Stream("a", rows=range(40, 60))
    assert torch.equal(whole.uniform(3, 2)[40:60], part.uniform(3, 2))
    assert torch.equal(whole.integers(7, 5)[40:60], part.integers(7, 5))
    assert torch.equal(whole.permutations(4)[40:60], part.permutations(4))
    assert torch.equal(whole.digits([5, 9], 3)[1][40:60], part.digits([5, 9], 3)[1])


def test_uniform_is_uniform():
    x = Stream("u", rows=range(100_000)).uniform(1)
    assert 0 <= x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    assert abs(x.mean() - 0.5) < 4 / (12 * 100_000) ** 0.5
    assert abs(x.var() - 1 / 12) < 0.002


def draw_digits(stream: Stream) -> torch.Tensor:
    one, other = stream.digits([3, 4])
    return one * 4 + other


@pytest.mark.parametrize(
    ("draw", "num_outcomes"),
    [
        (lambda stream: stream.integers(9, 1)[:, 0], 9),
        (lambda stream: stream.permutations(3) @ torch.tensor([9, 3, 1]), 6),
        (draw_digits, 12),
    ],
)
def test_outcomes_are_equally_likely(draw, num_outcomes):
    counts = draw(Stream("i", rows=range(10_000 * num_outcomes))).unique(return_counts=True)[1]
    assert len(counts) == num_outcomes
    deviation = ((counts - 10_000).double().square() / 10_000).sum()
    assert deviation < num_outcomes - 1 + 4 * (2 * num_outcomes - 2) ** 0.5


def test_digits_are_the_leading_bits_in_mixed_radix():
    """Against Python's unbounded integers: 6 * 7 * 8 fit one word, and so do 2^21 and 2^21 - 1, each alone."""
    words = [word % 2**64 for word in Stream("d", rows=range(50)).bits(2).flatten().tolist()]
    first, second, third = Stream("d", rows=range(50)).digits([6, 7, 8], 2)
    for word, *digits in zip(words, *(digit.flatten().tolist() for digit in (first, second, third)), strict=True):
        number = (word >> 4) * 6 * 7 * 8 >> 60
        assert digits == [number // 56, number // 8 % 7, number % 8]
    stream = Stream("d", rows=range(50))
    large, _ = stream.digits([2**21, 2**21 - 1])
    assert stream.num_draws == 2
    assert large.tolist() == [word % 2**64 >> 43 for word in Stream("d", rows=range(50)).bits().tolist()]


def test_a_chain_draws_what_its_streams_draw():
    """Streams with other keys, and streams with other rows of one key."""
    for make in (
        lambda: [Stream("a", number, rows=range(7, 12)) for number in range(3)],
        lambda: [Stream("a", rows=range(first, first + 5)) for first in (0, 5, 2**40)],
    ):
        chain, alone = Stream.chain(make()), make()
        assert len(chain) == 15
        for draw in (
            lambda stream: stream.bits(3, 2),
            lambda stream: stream.uniform(4),
            lambda stream: stream.integers(9, 2),
            lambda stream: stream.permutations(5),
            lambda stream: stream.uniform_sequences(torch.full((len(stream),), 2), 3, 4),
        ):
            assert torch.equal(draw(chain), torch.cat([draw(stream) for stream in alone]))


@pytest.mark.parametrize("rows", [0, 1, 700])
def test_draws_are_the_same_without_a_compiler(rows, monkeypatch):
    def draw() -> list[torch.Tensor]:
        stream = Stream.chain([Stream("c", number, rows=range(3, 3 + rows)) for number in range(2)])
        numbers = [
            stream.bits(61),
            stream.uniform(9, 5),
            stream.uniform_sequences(torch.arange(2 * rows) % 8, 7, 5),
            stream.integers(2**31 - 1, 3),
            stream.integers(1, 2),
            *stream.digits([5, 7], 4),
        ]
        return [*numbers, *(stream.choices(size, count) for size, count in ((1, 1), (17, 5), (40, 16), (40, 17)))]

    orders = Stream("p", rows=range(500)).permutations(30)
    for count in (1, 4, 16, 30):
        assert torch.equal(Stream("p", rows=range(500)).choices(30, count), orders[:, :count])
    assert draws.is_available(), draws.open_library()
    compiled = draw()
    monkeypatch.setattr(draws, "is_available", lambda: False)
    for one, other in zip(compiled, draw(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_sequences_are_uniform_numbers_with_zeros_behind_them(is_compiled, monkeypatch):
    monkeypatch.setattr(draws, "is_available", lambda: is_compiled)
    lengths = torch.arange(5).repeat(40)
    found = Stream("s", rows=range(9, 209)).uniform_sequences(lengths, 4, 100)
    expected = Stream("s", rows=range(9, 209)).uniform(4, 100)
    real = torch.arange(4) < lengths[:, None]
    assert torch.equal(found[real], expected[real])
    assert not found[~real].any()


def test_a_draw_is_in_memory_where_another_device_is_the_default():
    with torch.device("meta"):
        assert Stream("golden", rows=range(1)).bits(3).tolist() == GOLDEN_BITS
        assert Stream("golden", rows=range(100)).uniform(1000).device.type == "cpu"
