"""Layers with sigmoids in C agree with the definition, for any widths and lengths."""

import itertools

import pytest
import torch

from recombine.tasks.native import layers as kernel
from recombine.tasks.sequences.functions import apply_layers
from recombine.tasks.sequences.teacher import SequenceTeacher

needs_kernel = pytest.mark.skipif(isinstance(kernel.open_library(), str), reason=f"no kernel: {kernel.open_library()}")


def make_weights(*widths: int) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        weights |= {
            f"part.{i}.weight": torch.randn(outputs, inputs) / inputs**0.5,
            f"part.{i}.bias": torch.randn(outputs),
        }
    return weights


@needs_kernel
@pytest.mark.parametrize("widths", [(20, 20, 20), (1, 1), (3, 7, 5, 9, 2), (256, 33), (16, 256)])
@pytest.mark.parametrize("threads", [1, 2])
def test_agrees_with_the_definition(widths, threads):
    torch.manual_seed(0)
    weights, x = make_weights(*widths), 3 * torch.randn(23, 9, widths[0])
    lengths = torch.randint(0, 10, (23,))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = apply_layers(weights, "part", x, lengths)
    finally:
        torch.set_num_threads(before)
    real = torch.arange(9) < lengths[:, None]
    expected = apply_layers({name: weight.double() for name, weight in weights.items()}, "part", x.double()).float()
    torch.testing.assert_close(found[real], expected[real], rtol=2e-6, atol=2e-6)
    assert not found[~real].any()
    alone = torch.cat([apply_layers(weights, "part", x[i : i + 1], lengths[i : i + 1]) for i in range(23)])
    assert torch.equal(found, alone), "a row does not depend on the others"


@needs_kernel
def test_extreme_and_broken_numbers():
    weights = {"part.0.weight": torch.ones(1, 1), "part.0.bias": torch.zeros(1)}
    x = torch.tensor([-torch.inf, -200.0, -80.0, 0.0, 200.0, torch.inf, torch.nan])[:, None, None]
    found = apply_layers(weights, "part", x, torch.ones(7, dtype=torch.int64))
    torch.testing.assert_close(found, x.sigmoid(), equal_nan=True, rtol=1e-5, atol=1e-30)


def test_what_is_not_taken():
    wide, layers = ([(torch.randn(width, 4), torch.randn(width))] for width in (300, 4))
    assert not kernel.supports(torch.randn(1, 1, 4), wide)
    assert not kernel.supports(torch.randn(1, 1, 4).double(), layers)
    assert not kernel.supports(torch.randn(1, 1, 4, requires_grad=True), layers), "it has no gradients"
    assert not kernel.supports(torch.randn(1, 1, 4), [])


@pytest.mark.parametrize("teacher", ["deep_set", "attention", "ssm", "rnn", "product"])
@pytest.mark.parametrize("readout", ["linear", "mlp"])
def test_batches_are_those_of_the_definition(teacher, readout, monkeypatch):
    task = SequenceTeacher(teacher=teacher, teacher_readout=readout, token_dim=5, teacher_dim=6, target_dim=3)
    fast = task.sample("train", 0, batch_size=33)
    monkeypatch.setattr(kernel, "supports", lambda x, layers: False)
    plain = task.sample("train", 0, batch_size=33)
    assert torch.equal(fast.inputs, plain.inputs)
    for one, other in ((fast.targets, plain.targets), (fast.info["hidden"], plain.info["hidden"])):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


@needs_kernel
@pytest.mark.parametrize("width", [1, 20, 256])
def test_running_sums_and_cleared_padding_have_the_bits_of_torch(width):
    torch.manual_seed(0)
    x, lengths = torch.randn(23, 9, width), torch.randint(0, 10, (23,))
    real = (torch.arange(9) < lengths[:, None])[..., None].expand_as(x)
    embed = [(torch.randn(width, width), torch.randn(width)) for _ in range(2)]
    readout = [(torch.randn(3, width), torch.randn(3))]
    summed, y = kernel.sum_layers(x, lengths, embed, readout)
    expected = kernel.apply_layers(x, lengths, embed).cumsum(dim=1) * real
    assert torch.equal(summed, expected)
    assert torch.equal(y, kernel.apply_layers(expected, lengths, readout))
    cleared = kernel.clear_padding(x.clone(), lengths)
    assert cleared.numpy().tobytes() == (x * real).numpy().tobytes(), "-0 and all"


@needs_kernel
@pytest.mark.parametrize("length", [-1, 5, 2**62, -(2**62)])
def test_impossible_lengths_are_refused(length):
    x, lengths = torch.randn(3, 4, 2), torch.tensor([1, length, 4])
    before, layers = x.clone(), [(torch.randn(2, 2), torch.randn(2))]
    for call in (
        lambda: kernel.apply_layers(x, lengths, layers),
        lambda: kernel.sum_layers(x, lengths, layers, layers),
        lambda: kernel.clear_padding(x, lengths),
    ):
        with pytest.raises(AssertionError, match="a length is negative or larger than the number of tokens"):
            call()
    assert torch.equal(x, before)


def test_what_is_not_changed_in_place():
    x, lengths = torch.randn(3, 4, 5), torch.tensor([1, 2, 3])
    assert not kernel.supports_clear_padding(x[:, :2], lengths), "not contiguous"
    assert not kernel.supports_clear_padding(x.double(), lengths)
    assert not kernel.supports_clear_padding(x, lengths.int()), "lengths of another size would be read wrongly"
    assert not kernel.supports_clear_padding(x.clone().requires_grad_(), lengths)
    assert not kernel.supports_clear_padding(torch.randn(1, 1, 300), lengths[:1]), "too wide"
