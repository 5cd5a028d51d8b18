"""The dense layer with GELU: the kernel, torch's own function and the compiled form are one function."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from recombine.attention.cpu import gelu
from recombine.attention.dispatch import linear_gelu, use_kernel
from recombine.models.layers import build_feedforward

needs_kernel = pytest.mark.skipif(isinstance(gelu.open_library(), str), reason=f"no kernel: {gelu.open_library()}")


def define(x, weight, bias):
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def fuse(x, weight, bias):
    return gelu.add_gelu(functional.linear(x, weight), bias)


def draw_case(*shape, width, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) * scale
    weight = torch.randn(width, shape[-1], generator=generator) * shape[-1] ** -0.5
    return (x, weight, torch.randn(width, generator=generator)), torch.randn(*shape[:-1], width, generator=generator)


def differentiate(function, arguments, grad_out, dtype):
    leaves = [argument.to(dtype).requires_grad_() for argument in arguments]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out.to(dtype))]


@needs_kernel
@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 9)),
    width=st.integers(1, 40),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_values_and_gradients_are_those_of_the_definition(shape, width, scale):
    arguments, grad_out = draw_case(*shape, width=width, scale=scale)
    expected = differentiate(define, arguments, grad_out, torch.float64)
    actual = differentiate(fuse, arguments, grad_out, torch.float32)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-5 * max(1.0, theirs.abs().max().item()))


@needs_kernel
def test_far_values_and_nan():
    hidden = torch.tensor([[-1e30, -100.0, -1e-30, 0.0, 1e-30, 100.0, 1e30, torch.nan, torch.inf]])
    out = fuse(torch.ones(1, 1), hidden.T.contiguous(), torch.zeros(9))
    assert out[0, :7].tolist() == pytest.approx([0, 0, -0.5e-30, 0, 0.5e-30, 100, 1e30], rel=1e-6, abs=1e-7)
    assert out[0, 7].isnan()
    assert out[0, 8] == torch.inf


@needs_kernel
def test_bf16_rounds_once():
    arguments, grad_out = draw_case(4, 33, 16, width=24)
    x, weight = (argument.bfloat16() for argument in arguments[:2])
    with torch.autocast("cpu", torch.bfloat16):
        actual = differentiate(linear_gelu, arguments, grad_out, torch.float32)
    hidden = functional.linear(x, weight).float() + arguments[2]
    expected = functional.gelu(hidden, approximate="tanh").bfloat16()
    assert actual[0].dtype == torch.bfloat16
    torch.testing.assert_close(actual[0], expected, rtol=2**-8, atol=1e-5)
    precise = differentiate(define, arguments, grad_out, torch.float64)
    for mine, theirs in zip(actual[1:], precise[1:], strict=True):
        assert (mine.double() - theirs).norm() < 0.02 * theirs.norm()


@needs_kernel
@pytest.mark.parametrize("width", [3, 16])  # part of a vector, and whole ones
def test_bf16_is_rounded_as_torch_rounds_it(width):
    bias = torch.tensor([1.0, 3.0, 1.01, -1.0, 0.5, torch.nan, torch.inf, 1e30]).repeat(2)[:width]
    hidden = torch.full((1, width), 256.0, dtype=torch.bfloat16)
    expected = (hidden.float() + bias).bfloat16()  # so far from zero, GELU returns its argument
    torch.testing.assert_close(gelu.add_gelu(hidden, bias), expected, rtol=0, atol=0, equal_nan=True)


@needs_kernel
def test_the_same_bits_with_any_number_of_threads():
    arguments, grad_out = draw_case(5, 100, 8, width=19)
    hidden = arguments[0] @ arguments[1].T
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(differentiate(gelu._Gelu.apply, (hidden, arguments[2]), grad_out, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(results[0], other, strict=True))


@needs_kernel
def test_second_derivatives():
    arguments, _ = draw_case(3, 4, width=5)
    leaves = [argument.double().requires_grad_() for argument in arguments]
    single = [argument.requires_grad_() for argument in arguments]

    def curvature(function, leaves):
        (first,) = torch.autograd.grad(function(*leaves).sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaves)

    for mine, theirs in zip(curvature(fuse, single), curvature(define, leaves), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


def test_every_way_through_the_door_is_the_same_function(monkeypatch, unchecked):
    torch._dynamo.reset()
    arguments, _ = draw_case(3, 7, width=5)
    expected = define(*arguments)
    with use_kernel("reference"):
        torch.testing.assert_close(linear_gelu(*arguments), expected)
    torch.testing.assert_close(linear_gelu(*arguments), expected)
    torch.testing.assert_close(torch.func.vmap(lambda x: linear_gelu(x, *arguments[1:]))(arguments[0]), expected)
    compiled = torch.compile(linear_gelu, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), expected)
    doubles = [argument.double() for argument in arguments]
    torch.testing.assert_close(linear_gelu(*doubles), define(*doubles))
    monkeypatch.setattr(gelu, "open_library", lambda: "no C compiler")
    assert not gelu.supports(arguments[0], arguments[2])
    torch.testing.assert_close(linear_gelu(*arguments), expected)


def test_the_feedforward_layer_uses_it():
    layer, x = build_feedforward("mlp", 6, 10), torch.randn(2, 3, 6)
    with use_kernel("reference"):
        expected = layer(x)
    torch.testing.assert_close(layer(x), expected)
