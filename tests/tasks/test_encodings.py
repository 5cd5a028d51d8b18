"""The encodings of a task: injective, at the borders of intervals too, and as linear as each should be."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recombine.compositions import all_sets
from recombine.random import Stream
from recombine.tasks.modular.encodings import (
    build_encoder,
    draw_invertible,
    draw_rotation,
    encode_tokens,
    find_intervals,
    shuffle_intervals,
)

NUM_MODULES = 6
ENCODINGS = ("identity", "orthogonal", "tokens", "invertible", "interval_shuffle")


def all_discrete_latents() -> tuple[torch.Tensor, torch.Tensor]:
    """Every set of up to 3 of 6 modules at every level, and its modules filled up with -1."""
    strengths, modules = [], []
    for composition in all_sets(NUM_MODULES, (1, 2, 3)):
        for levels in itertools.product(range(5, 11), repeat=len(composition)):
            row = torch.zeros(NUM_MODULES)
            row[list(composition)] = torch.tensor(levels) / 10
            strengths.append(row)
            modules.append((*composition, *[-1] * (3 - len(composition))))
    return torch.stack(strengths), torch.tensor(modules)


Z, MODULES = all_discrete_latents()


def encode(name: str, key: str = "test") -> torch.Tensor:
    return build_encoder(name, key, size=NUM_MODULES, device=Z.device)(Z)


@pytest.mark.parametrize("name", ENCODINGS)
def test_codes_tell_all_discrete_latents_apart(name):
    codes = encode(name)
    assert codes.shape == (len(Z), NUM_MODULES * (2 if name == "tokens" else 1))
    assert len(Z) == 6 * 6 + 15 * 6**2 + 20 * 6**3
    assert torch.cdist(codes.double(), codes.double()).fill_diagonal_(1).min() > 1e-3
    assert torch.isfinite(codes).all()
    assert torch.equal(codes, encode(name, "other")) == (name in ("identity", "tokens"))


def test_the_rotation_is_one():
    rotation = draw_rotation("test", size=16)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(16), atol=1e-6, rtol=0)
    assert (rotation - torch.eye(16)).abs().max() > 0.3
    assert not torch.equal(rotation, draw_rotation("other", size=16))


def test_tokens_by_hand():
    """As published: 1, w_1, 2, w_2, ..., with w_m = floor(10 z_m) + M + 1."""
    z = torch.tensor([[0.0, 0.7, 0.0, 1.0]])
    assert encode_tokens(z).tolist() == [[1, 5, 2, 12, 3, 5, 4, 15]]
    for z, code in zip(Z[::97].tolist(), encode_tokens(Z[::97]).tolist(), strict=True):
        expected = []
        for number, strength in enumerate(z, start=1):
            expected += [number, math.floor(round(10 * strength, 3)) + NUM_MODULES + 1]
        assert code == expected


def test_every_tenth_opens_its_own_interval():
    tenths = torch.tensor([k / 10 for k in range(11)])
    interval, offset = find_intervals(tenths)
    assert interval.tolist() == list(range(11))
    assert offset.max() < 1e-5
    just_below = find_intervals(tenths[1:] - 1e-4)
    assert just_below[0].tolist() == list(range(10))
    assert just_below[1].min() > 0.99


def test_the_shuffle_moves_whole_intervals_and_keeps_one():
    order = torch.tensor([3, 1, 0, 2, 4, 9, 8, 7, 6, 5])
    z = torch.tensor([0.0, 0.05, 0.5, 0.58, 0.7, 0.9, 0.97, 1.0])
    expected = torch.tensor([0.3, 0.35, 0.9, 0.98, 0.7, 0.5, 0.57, 1.0])
    torch.testing.assert_close(shuffle_intervals(z, order), expected, atol=1e-6, rtol=0)


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=2, unique=True))
def test_the_shuffle_is_injective_on_numbers_that_differ(pair):
    first, second = torch.tensor(pair, dtype=torch.float64)
    if abs(first - second) > 1e-5:
        order = Stream("test", rows=range(1)).permutations(10)[0]
        assert abs(shuffle_intervals(first, order) - shuffle_intervals(second, order)) > 1e-6


def test_couplings_can_be_undone_and_change_everything():
    network = draw_invertible("test", size=8)
    network = type(network)(network.permutation, *(part.double() for part in network[1:]))
    z = torch.rand(200, 8, dtype=torch.float64)
    first, second = network.forward(z).chunk(2, dim=1)
    for number in (2, 1, 0):
        scale, shift = network._couple(second, number)
        first, second = second, (first - shift) / scale
    torch.testing.assert_close(
        torch.cat([first, second], dim=1)[:, network.permutation.argsort()], z, atol=1e-9, rtol=0
    )


def measure_linearity(codes: torch.Tensor, z: torch.Tensor) -> float:
    """R² of z decoded linearly from its encoding, fitted on a random half of the rows and scored on the others."""
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    x = torch.cat([codes, torch.ones(len(codes), 1)], dim=1).double()[order]
    z, half = z.double()[order], len(z) // 2
    read = x[half:] @ torch.linalg.lstsq(x[:half], z[:half], driver="gelsd").solution
    return 1 - float((read - z[half:]).square().sum() / (z[half:] - z[half:].mean(dim=0)).square().sum())


def test_how_linearly_strengths_can_be_decoded():
    linear = {name: measure_linearity(encode(name), Z) for name in ENCODINGS}
    assert min(linear["identity"], linear["orthogonal"], linear["tokens"]) > 0.999
    assert max(linear["invertible"], linear["interval_shuffle"]) < 0.9
