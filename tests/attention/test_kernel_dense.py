"""Dense layers: every path through the door is one function, in values and gradients."""

import platform
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from recombine.attention.cpu import onednn, weight_gradient
from recombine.attention.dense import lecun_linear
from recombine.attention.dispatch import dense, use_kernel
from recombine.foundation import native as processor
from recombine.foundation.errors import InputError
from spies import record_calls

needs_onednn = pytest.mark.skipif(onednn.find_operator() is None, reason="this build of torch has no oneDNN")
needs_kernel = pytest.mark.skipif(isinstance(weight_gradient.open_library(), str), reason="no C compiler")


def draw_layer(*shape, width, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    x, weight = torch.randn(*shape), torch.randn(width, shape[-1])
    tensors = [x, weight, torch.randn(width)] if bias else [x, weight]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def differentiate(function, leaves):
    out = function(*leaves)
    return [out, *torch.autograd.grad(out, leaves, torch.cos(out.detach()))]


@needs_kernel
@settings(max_examples=30, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 191, 192, 193, 400]),
    inputs=st.sampled_from([1, 7, 32, 33, 64, 513, 550]),
    outputs=st.sampled_from([1, 3, 8, 9, 40]),
    strided=st.booleans(),
)
def test_the_gradient_of_a_weight_is_the_product(rows, inputs, outputs, strided):
    torch.manual_seed(0)
    x, grad_out = torch.randn(rows, inputs + 3)[:, : inputs if strided else None], torch.randn(rows, outputs + 1)
    grad_out = grad_out[:, 1:] if strided else grad_out
    grad_weight, grad_bias = weight_gradient.differentiate(x, grad_out, needs_bias=True)
    tolerance: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(grad_weight.double(), grad_out.double().t() @ x.double(), **tolerance)
    torch.testing.assert_close(grad_bias.double(), grad_out.double().sum(dim=0), **tolerance)
    assert weight_gradient.differentiate(x, grad_out, needs_bias=False)[1] is None


@needs_kernel
def test_the_gradient_of_a_weight_has_the_same_bits_with_any_number_of_threads():
    torch.manual_seed(0)
    x, grad_out = torch.randn(500, 70), torch.randn(500, 45)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(weight_gradient.differentiate(x, grad_out, needs_bias=True))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@needs_onednn
@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 50, 24), (70, 24), (1, 24)])
def test_onednn_is_the_same_layer(monkeypatch, shape, bias, compiler):
    if not compiler:
        monkeypatch.setattr(weight_gradient, "open_library", lambda: "no C compiler")
    expected = differentiate(functional.linear, draw_layer(*shape, width=40, bias=bias, dtype=torch.float64))
    actual = differentiate(lambda x, w, b=None: onednn.dense(x, w, b), draw_layer(*shape, width=40, bias=bias))
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_gradients_of_some_only(wanted):
    leaves = draw_layer(5, 6, width=4)
    (expected,) = torch.autograd.grad(functional.linear(*leaves).sum(), leaves[wanted])
    for i, leaf in enumerate(leaves):
        leaf.requires_grad_(i == wanted)
    (actual,) = torch.autograd.grad(onednn.dense(*leaves).sum(), leaves[wanted])
    torch.testing.assert_close(actual, expected)


@needs_onednn
def test_second_derivatives():
    def curvature(function):
        leaves = draw_layer(5, 6, width=4)
        (first,) = torch.autograd.grad(function(*leaves).square().sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaves)

    for mine, theirs in zip(curvature(onednn.dense), curvature(functional.linear), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


@needs_onednn
def test_the_door_takes_onednn_where_it_pays(monkeypatch, unchecked):
    calls: list[Any] = []
    real = onednn.dense
    monkeypatch.setattr(onednn, "dense", record_calls(real, calls))
    monkeypatch.setattr(onednn, "ENOUGH", 5 * 6 * 4)
    monkeypatch.setattr(onednn, "is_amd_with_avx512", lambda: True)
    x, weight, bias = (leaf.detach() for leaf in draw_layer(5, 6, width=4))
    expected = functional.linear(x, weight, bias)
    torch.testing.assert_close(dense(x, weight, bias), expected)
    assert len(calls) == 1
    layer = lecun_linear(6, 4)
    torch.testing.assert_close(layer(x), functional.linear(x, layer.weight, layer.bias))
    assert len(calls) == 2

    torch.testing.assert_close(dense(x[:4], weight, bias), expected[:4])  # too small
    wide = x.double(), weight.double(), bias.double()
    torch.testing.assert_close(dense(*wide), functional.linear(*wide))
    torch.testing.assert_close(torch.func.vmap(lambda row: dense(row[None], weight, bias)[0])(x), expected)
    torch.testing.assert_close(torch.compile(dense, backend="aot_eager", fullgraph=True)(x, weight, bias), expected)
    with use_kernel("reference"):
        torch.testing.assert_close(dense(x, weight, bias), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert dense(x, weight, bias).dtype == torch.bfloat16
    monkeypatch.setattr(onednn, "is_amd_with_avx512", lambda: False)
    torch.testing.assert_close(dense(x, weight, bias), expected)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert onednn.find_operator.__wrapped__() is None
    assert len(calls) == 2


@needs_onednn
def test_shapes_that_do_not_fit_are_told(monkeypatch, unchecked):
    monkeypatch.setattr(onednn, "pays", lambda *_: True)
    with pytest.raises(InputError, match=r"expected \(..., input\) and \(output, input\)"):
        dense(torch.zeros(2, 3), torch.zeros(4, 5))


@pytest.mark.parametrize(
    ("capability", "cpu", "name", "expected"),
    [
        ("AVX512", {"vendor_id": "AuthenticAMD"}, "", True),
        ("AVX512", {"vendor_id": "GenuineIntel"}, "AuthenticAMD", False),
        ("AVX512", {}, "AMD64 Family 25, AuthenticAMD", True),
        ("AVX2", {"vendor_id": "AuthenticAMD"}, "", False),
    ],
)
def test_the_processor_is_recognised(monkeypatch, capability, cpu, name, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(processor, "read_cpu", lambda: cpu)
    monkeypatch.setattr(platform, "processor", lambda: name)
    assert processor.look_up.__wrapped__() == expected


def test_a_layer_is_still_torch_s_linear():
    assert isinstance(lecun_linear(2, 3), nn.Linear)
