"""Linear attention in linear time is the definition without normalisation, in values and in gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attention_cases
from recombine.attention import dispatch, linear
from recombine.attention.cache import LinearCache
from recombine.attention.definition import AttentionOptions
from spies import record_calls


def draw_qkv(batch, num_queries, num_keys, heads, width, value_width, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_queries, width), (num_keys, width), (num_keys, value_width))
    return [
        torch.randn(batch, tokens, heads, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for tokens, size in shapes
    ]


def define(q, k, v, *, value_network="linear", causal=False, mask=None):
    options = {"normalisation": "none", "value_network": value_network, "causal": causal, "mask": mask}
    return attention_cases.define(q, k, v, **options)


def attend(q, k, v, *, value_network="linear", causal=False, mask=None):
    return linear.attend(q, k, v, AttentionOptions("none", value_network, mask=mask, causal=causal))


def differentiate(function, tensors, **choices):
    out = function(*tensors, **choices)
    grad_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return out, *torch.autograd.grad(out, tensors, grad_out.to(out.dtype))


@settings(max_examples=40, deadline=None)
@given(
    num_queries=st.integers(1, 200),
    num_keys=st.integers(1, 200),
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    value_network=st.sampled_from(linear.VALUE_NETWORKS),
    causal=st.booleans(),
    masked=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_definition(num_queries, num_keys, sizes, value_network, causal, masked):
    batch, *widths = sizes
    tensors = draw_qkv(batch, num_queries, num_keys, *widths)
    mask = torch.rand(batch, 1, 1, num_keys, generator=torch.Generator().manual_seed(2)) < 0.7 if masked else None
    choices = {"value_network": value_network, "causal": causal, "mask": mask}
    expected = differentiate(define, tensors, **choices)
    for mine, theirs in zip(differentiate(attend, tensors, **choices), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", ["auto", "reference", "chunked", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 63, 130])
def test_every_kernel_is_the_recurrence_over_tokens(kernel, dtype, length):
    q, k, v = (x.detach() for x in draw_qkv(2, length, length, 3, 4, 5, dtype))
    total, expected = torch.zeros(2, 3, 4, 5, dtype=torch.float64), []
    for t in range(length):
        total = total + k[:, t, :, :, None].double() * v[:, t, :, None, :].double()
        expected.append((q[:, t, :, None, :].double() @ total)[:, :, 0] / 2)  # sqrt(4)
    with dispatch.use_kernel(kernel):
        found, _ = dispatch.attend(
            q, k, v, normalisation="none", value_network="linear", causal=True, return_codes=False
        )
    assert found.dtype == dtype
    # codes have the precision of the values where a kernel stores them, so errors grow with the root of the length
    relative = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}[dtype]
    error = (found.double() - torch.stack(expected, dim=1)).abs().max()
    assert error <= relative * torch.stack(expected).abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-7)])
def test_lower_precision_rounds_once(dtype, tolerance):
    tensors = draw_qkv(2, 300, 300, 2, 16, 16, dtype)
    exact = differentiate(define, [x.detach().double().requires_grad_() for x in tensors], causal=True)
    for mine, theirs in zip(differentiate(attend, tensors, causal=True), exact, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - theirs).norm() < tolerance * theirs.norm()
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = attend(*tensors, causal=True)
    assert torch.equal(under_autocast, attend(*tensors, causal=True)), "autocast must not round the sums"


def test_second_derivatives(monkeypatch):
    monkeypatch.setattr(linear, "CHUNK", 3)
    tensors = draw_qkv(1, 7, 8, 2, 2, 3)
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, causal=True), tensors)


def test_memory_is_linear_in_the_length():
    saved = {}
    for length in (1000, 2000):
        tensors = draw_qkv(1, length, length, 1, 4, 4, torch.float32)
        packed: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(record_calls(lambda x: x, packed), lambda x: x):
            attend(*tensors, causal=True)
        saved[length] = sum(x.numel() for (x,) in packed)
    assert saved[2000] == 2 * saved[1000] == 2 * 3 * 1000 * 4


@pytest.mark.parametrize("value_network", linear.VALUE_NETWORKS)
def test_a_cache_of_constant_size_generates_the_same(value_network):
    q, k, v = draw_qkv(2, 90, 90, 3, 4, 5)
    expected = define(q, k, v, value_network=value_network, causal=True)
    cache = LinearCache()
    for start, end in ((0, 50), *((t, t + 1) for t in range(50, 90))):
        new = (x[:, start:end] for x in (q, k, v))
        options: dict[str, Any] = {"normalisation": "none", "value_network": value_network, "causal": True}
        out, _ = cache.attend(*new, return_codes=False, **options)
        torch.testing.assert_close(out, expected[:, start:end])
        assert [memory.shape for memory in vars(cache).values() if isinstance(memory, torch.Tensor)] == [(2, 3, 4, 5)]


def test_a_cache_of_bf16_tokens_is_in_float32():
    q, k, v = draw_qkv(1, 600, 600, 1, 4, 4, torch.bfloat16)
    cache = LinearCache()
    for t in range(600):
        new = (x[:, t : t + 1] for x in (q, k, v))
        out, _ = cache.attend(*new, normalisation="none", value_network="linear", causal=True, return_codes=False)
    assert out.dtype == torch.bfloat16
    exact = define(q.double(), k.double(), v.double(), causal=True)[:, -1:]
    torch.testing.assert_close(out.double(), exact, rtol=2**-7, atol=2**-7)
