"""Attention in chunks of queries: the numbers of the definition, without its tensors."""

import itertools
from typing import get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recombine.attention import chunked
from recombine.attention import definition as reference
from recombine.foundation.errors import InputError

CHOICES = list(itertools.product(get_args(reference.Normalisation), get_args(reference.ValueNetwork)))


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def evaluate(attend, leaves, **options):
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    out = attend(**leaves, **options)
    out = out[0] if isinstance(out, tuple) else out
    return out, *torch.autograd.grad(out, list(leaves.values()), draw(*out.shape, seed=1))


def check(normalisation, value_network, causal, chunk_size):
    leaves = {"q": draw(2, 7, 3, 2), "k": draw(2, 9, 3, 2), "v": draw(2, 9, 3, 4), "bias": draw(3, 7, 9)}
    if value_network == "hyper_deep":
        leaves["deep_weight"] = draw(3, 4, 4)
    options = {
        "normalisation": normalisation,
        "value_network": value_network,
        "causal": causal,
        "mask": draw(2, 1, 7, 9) > -1,
    }
    ours = evaluate(chunked.attend, leaves, chunk_size=chunk_size, **options)
    for got, want in zip(ours, evaluate(reference.attend, leaves, **options), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("normalisation", "value_network"), CHOICES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_numbers_of_the_definition(normalisation, value_network, causal):
    check(normalisation, value_network, causal, chunk_size=3)


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 100])
def test_any_chunk_size(chunk_size):
    check("rms_head", "hyper_relu", True, chunk_size)


@pytest.mark.parametrize("pairs", [(), (9,), (1, 9), (7, 1), (2, 1, 1, 9), (3, 1, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_bias_and_mask_broadcast(pairs, causal):
    leaves = {"q": draw(2, 7, 3, 2), "k": draw(2, 9, 3, 2), "v": draw(2, 9, 3, 2), "bias": draw(*pairs)}
    options = {"normalisation": "rms_head", "value_network": "hyper_relu", "causal": causal, "mask": draw(*pairs) > -1}
    ours = evaluate(chunked.attend, leaves, chunk_size=2, **options)
    for got, want in zip(ours, evaluate(reference.attend, leaves, **options), strict=True):
        torch.testing.assert_close(got, want)


def test_queries_before_the_first_key_receive_zeros():
    leaves = {"q": draw(2, 6, 3, 2), "k": draw(2, 2, 3, 2), "v": draw(2, 2, 3, 2)}
    options = {"normalisation": "softmax", "value_network": "linear", "causal": True}
    ours = evaluate(chunked.attend, leaves, chunk_size=2, **options)
    assert not ours[0][:, :4].any()
    for got, want in zip(ours, evaluate(reference.attend, leaves, **options), strict=True):
        torch.testing.assert_close(got, want)


class LargestTensor(TorchDispatchMode):
    """The most elements any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("value_network", ["linear", "hyper_relu"])
def test_no_large_tensor_in_either_pass(monkeypatch, value_network):
    monkeypatch.setattr(chunked, "MOST_ELEMENTS", 1 << 13)
    leaves = {name: draw(1, 128, 2, 8) for name in "qkv"}
    options = {"normalisation": "rms_head", "value_network": value_network, "causal": True}
    with LargestTensor() as largest:
        evaluate(chunked.attend, leaves, **options)
    assert largest.elements <= 1 << 13
    with LargestTensor() as largest:
        evaluate(reference.attend, leaves, **options)
    assert largest.elements >= 128 * 128 * 2


def test_nothing_is_saved_without_gradients():
    q, k, v = (draw(1, 8, 2, 2) for _ in range(3))
    with torch.no_grad():
        out = chunked.attend(q, k, v, normalisation="none", value_network="linear", chunk_size=3)
    torch.testing.assert_close(out, reference.attend(q, k, v, normalisation="none", value_network="linear")[0])


def test_a_wrong_chunk_size(unchecked):
    q, k, v = (draw(1, 8, 2, 2) for _ in range(3))
    with pytest.raises(InputError, match="chunk_size is 0"):
        chunked.attend(q, k, v, normalisation="none", value_network="linear", chunk_size=0)
