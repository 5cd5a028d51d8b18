"""The residual sum with LayerNorm: the kernel, torch's own function and the compiled form are one function."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from recombine.attention.cpu import norm
from recombine.attention.dispatch import add_norm, use_kernel
from recombine.foundation.errors import InputError
from recombine.models.layers import ResidualNorm

EPSILON = 1e-6
needs_kernel = pytest.mark.skipif(isinstance(norm.open_library(), str), reason=f"no kernel: {norm.open_library()}")


def define(residual, update, gain, shift, epsilon=EPSILON):
    total = residual if update is None else residual + update
    return total * 1, functional.layer_norm(total, gain.shape, gain, shift, epsilon)


def call(function):
    return lambda *arguments: function(*arguments, EPSILON)


def draw_case(*shape, with_update=True, offset=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    residual, update, *grads = (torch.randn(*shape, generator=generator) for _ in range(4))
    gain, shift = torch.randn(2, shape[-1], generator=generator)
    return [residual + offset, update if with_update else None, gain, shift], grads


def differentiate(function, arguments, grads, dtype, used=(0, 1)):
    """Both outputs, and the gradients of all inputs if only some outputs are used."""
    leaves = [None if x is None else x.to(dtype).detach().requires_grad_() for x in arguments]
    out = function(*leaves)
    total = sum((out[i] * grads[i].to(dtype)).sum() for i in used)
    given = [leaf for leaf in leaves if leaf is not None]
    found = torch.autograd.grad(total, given, allow_unused=True)
    return [x.detach() for x in out] + [
        torch.zeros_like(leaf) if x is None else x for x, leaf in zip(found, given, strict=True)
    ]


@needs_kernel
@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 40)),
    with_update=st.booleans(),
    used=st.sampled_from([(0, 1), (0,), (1,)]),
    offset=st.sampled_from([0.0, 30.0]),
)
def test_values_and_gradients_are_those_of_the_definition(shape, with_update, used, offset):
    arguments, grads = draw_case(*shape, with_update=with_update, offset=offset)
    expected = differentiate(define, arguments, grads, torch.float64, used)
    actual = differentiate(call(norm.add_norm), arguments, grads, torch.float32, used)
    # where the numbers of a row nearly agree, rounding errors are divided by almost nothing: once, and twice in gradients
    deviation = (expected[0].var(dim=-1, correction=0) + EPSILON).sqrt().min().item()
    for mine, exact in zip(actual, expected, strict=True):
        error = 1e-6 * max(1.0, exact.abs().max().item()) * (1 + offset)
        assert (mine.double() - exact).abs().max() <= error * max(1.0, 1 / deviation) ** 2


@needs_kernel
@pytest.mark.parametrize("default_type", [torch.float32, torch.float64, torch.bfloat16])
def test_parameters_may_have_gaps_and_the_default_type_does_not_matter(default_type):
    (residual, update, gain, shift), grads = draw_case(8, 32)
    gain, shift = (x.repeat_interleave(2)[::2] for x in (gain, shift))
    expected = differentiate(define, [residual, update, gain, shift], grads, torch.float64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default_type)
    try:
        found = differentiate(call(norm.add_norm), [residual, update, gain, shift], grads, torch.float32)
    finally:
        torch.set_default_dtype(before)
    for mine, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)


@needs_kernel
def test_bf16_keeps_what_it_normalised():
    arguments, grads = draw_case(3, 50, 33)
    residual, update = (x.bfloat16() for x in arguments[:2])
    total, normed = call(norm.add_norm)(residual, update, *arguments[2:])
    assert total.dtype == normed.dtype == torch.bfloat16
    assert torch.equal(total, residual + update)
    exact = define(total.double(), None, *(x.double() for x in arguments[2:]))[1]
    torch.testing.assert_close(normed.double(), exact, rtol=2**-8, atol=1e-5)
    leaves = [residual.requires_grad_(), update.requires_grad_(), *(x.requires_grad_() for x in arguments[2:])]
    out = call(norm.add_norm)(*leaves)
    found = torch.autograd.grad(out, leaves, [x.bfloat16() for x in grads])
    precise = differentiate(define, arguments, grads, torch.float64)[2:]
    for mine, theirs in zip(found, precise, strict=True):
        assert (mine.double() - theirs).norm() < 0.02 * theirs.norm()


@needs_kernel
def test_nan_stays_nan():
    arguments, _ = draw_case(9, 16)
    arguments[0][4, 3] = torch.nan
    normed = call(norm.add_norm)(*arguments)[1]
    assert normed.isnan().any(dim=1).tolist() == [row == 4 for row in range(9)]


@needs_kernel
def test_the_same_bits_with_any_number_of_threads():
    arguments, grads = draw_case(5, 100, 19)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(differentiate(call(norm.add_norm), arguments, grads, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(results[0], other, strict=True))


@needs_kernel
@pytest.mark.parametrize("with_update", [True, False])
def test_second_derivatives(with_update):
    arguments, _ = draw_case(3, 4, with_update=with_update)

    def curvature(function, dtype):
        leaves = [None if x is None else x.to(dtype).detach().requires_grad_() for x in arguments]
        given = [leaf for leaf in leaves if leaf is not None]
        total, normed = function(*leaves)
        firsts = torch.autograd.grad((total.sin() * normed.cos()).sum(), given, create_graph=True)
        return torch.autograd.grad(torch.stack([first.square().sum() for first in firsts]).sum(), given)

    for mine, theirs in zip(
        curvature(call(norm.add_norm), torch.float32), curvature(define, torch.float64), strict=True
    ):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("with_update", [True, False])
def test_every_way_through_the_door_is_the_same_function(monkeypatch, unchecked, with_update):
    torch._dynamo.reset()
    arguments, _ = draw_case(3, 7, with_update=with_update)
    expected = define(*arguments)
    with use_kernel("reference"):
        torch.testing.assert_close(call(add_norm)(*arguments), expected)
    torch.testing.assert_close(call(add_norm)(*arguments), expected)
    compiled = torch.compile(add_norm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(call(compiled)(*arguments), expected)
    mapped = torch.func.vmap(lambda x: call(add_norm)(x, None, *arguments[2:]))(arguments[0])
    torch.testing.assert_close(mapped, define(arguments[0], None, *arguments[2:]))
    doubles = [None if x is None else x.double() for x in arguments]
    torch.testing.assert_close(call(add_norm)(*doubles), define(*doubles))
    monkeypatch.setattr(norm, "open_library", lambda: "no C compiler")
    assert not norm.supports(*arguments)
    torch.testing.assert_close(call(add_norm)(*arguments), expected)


def test_shapes_that_do_not_fit_are_refused(unchecked):
    x, gain = torch.zeros(2, 3), torch.ones(3)
    with pytest.raises(InputError, match=r"the update has shape \(1, 3\): expected the residual's, \(2, 3\)"):
        add_norm(x, torch.zeros(1, 3), gain, gain, EPSILON)
    with pytest.raises(InputError, match=r"weight and bias have shapes \(3,\) and \(2,\): expected \(3,\)"):
        add_norm(x, None, gain, torch.ones(2), EPSILON)


def test_the_layer_is_a_layer_norm_of_the_sum():
    layer, x, update = ResidualNorm(6), torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    total, normed = layer(x, update)
    torch.testing.assert_close(total, x + update)
    torch.testing.assert_close(normed, torch.nn.LayerNorm(6)(x + update))
    assert set(layer.state_dict()) == {"weight", "bias"}
