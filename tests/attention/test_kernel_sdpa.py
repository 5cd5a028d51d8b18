"""Softmax by torch's own function is the definition wherever the door takes it, and only there."""

from typing import Any

import pytest
import torch

from recombine.attention import definition as reference
from recombine.attention import sdpa
from recombine.attention.cpu import attention as cpu
from recombine.attention.dispatch import attend
from recombine.foundation.errors import InputError
from spies import record_calls

SOFTMAX: dict[str, Any] = {"normalisation": "softmax", "value_network": "linear"}


def draw_qkv(batch, num_queries, num_keys, heads, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((num_queries, width), (num_keys, width), (num_keys, width))
    drawn = (torch.randn(batch, tokens, heads, size, generator=generator) for tokens, size in shapes)
    return [x.to(dtype).requires_grad_() for x in drawn]


def differentiate(function, tensors, **choices):
    out = function(*tensors, **choices)
    return out, *torch.autograd.grad(out, tensors, torch.ones_like(out).cumsum(dim=1))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(130, 130), (1, 1), (3, 200)])
def test_values_and_gradients_are_those_of_the_definition(num_queries, num_keys, causal):
    if causal and num_queries != num_keys:
        pytest.skip("not supported, see below")
    tensors = draw_qkv(2, num_queries, num_keys, 3, 16)
    exact = differentiate(
        lambda *x: reference.attend(*x, causal=causal, **SOFTMAX)[0],
        [x.detach().double().requires_grad_() for x in tensors],
    )
    for mine, theirs in zip(differentiate(sdpa.attend, tensors, causal=causal), exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5 * max(1.0, theirs.abs().max().item()))


def test_autocast_does_not_round():
    tensors = draw_qkv(1, 40, 40, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = sdpa.attend(*tensors)
    assert torch.equal(rounded, sdpa.attend(*tensors))


@pytest.mark.parametrize(
    "wrong",
    [
        {"normalisation": "none"},
        {"value_network": "hyper_relu"},
        {"bias": torch.zeros(7, 9)},
        {"mask": torch.zeros(7, 9, dtype=torch.bool)},  # a query without any key receives zeros
        {"causal": True},  # 7 queries and 9 keys: aligned at the end
    ],
)
def test_everything_else_is_refused_by_the_kernel_and_left_to_others_by_the_door(unchecked, wrong):
    tensors = draw_qkv(1, 7, 9, 2, 16)
    with pytest.raises(InputError, match="torch's attention does not take this"):
        sdpa.attend(*tensors, **wrong)
    choices = SOFTMAX | wrong
    expected = reference.attend(*tensors, **choices)[0]
    out, _ = attend(*tensors, kernel="sdpa", return_codes=False, **choices)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not cpu.is_available(), reason="no fused kernel to choose instead")
@pytest.mark.parametrize(
    ("processor", "length", "width", "causal", "taken"),
    [
        ("AVX2", 256, 64, True, True),
        ("AVX2", 32, 64, True, False),
        ("AVX2", 512, 8, True, False),
        ("AVX2", 128, 64, False, True),
        ("Intel, AVX512", 1024, 64, True, False),
        ("Intel, AVX512", 2048, 64, True, True),
        ("Intel, AVX512", 1024, 128, True, True),
        ("Intel, AVX512", 2048, 16, True, False),
        ("Intel, AVX512", 128, 64, False, True),
        ("AMD, AVX512", 256, 64, False, False),
        ("AMD, AVX512", 256, 128, True, False),
        ("AMD, AVX512", 256, 128, False, True),
    ],
)
def test_the_door_takes_it_where_it_pays(monkeypatch, processor, length, width, causal, taken):
    calls: list[Any] = []
    monkeypatch.setattr(sdpa, "is_amd_with_avx512", lambda: processor.startswith("AMD"))
    monkeypatch.setattr(sdpa, "HAS_AVX512", processor.endswith("AVX512"))
    monkeypatch.setattr(sdpa, "ENOUGH", 8192 if processor.endswith("AVX512") else 16384)
    real = sdpa.attend
    monkeypatch.setattr(sdpa, "attend", record_calls(real, calls))
    tensors = draw_qkv(1, length, length, 1, width)
    out, _ = attend(*tensors, causal=causal, return_codes=False, **SOFTMAX)
    assert bool(calls) == taken
    torch.testing.assert_close(out, reference.attend(*tensors, causal=causal, **SOFTMAX)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["auto", "sdpa"])
def test_a_compiled_graph_is_whole(unchecked, kernel):
    torch._dynamo.reset()
    tensors = draw_qkv(1, 256, 256, 1, 64)
    compiled = torch.compile(
        lambda *x: attend(*x, causal=True, return_codes=False, kernel=kernel, **SOFTMAX)[0],
        backend="aot_eager",
        fullgraph=True,
    )
    expected = differentiate(lambda *x: reference.attend(*x, causal=True, **SOFTMAX)[0], tensors)
    for mine, theirs in zip(differentiate(compiled, tensors), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
