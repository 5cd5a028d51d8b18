"""The fused kernel of HYLA with a two-layer value network agrees with its definition."""

import pytest
import torch

from recombine.attention import definition
from recombine.attention.cpu import deep
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions
from recombine.foundation import native

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=f"no kernel: {cpu.why_unavailable()}")

CASES = [(3, 5, 5, 16, 4, 4), (2, 1, 37, 8, 2, 2), (20, 7, 16, 5, 3, 6), (1, 40, 70, 2, 1, 9)]


def draw(b, num_queries, num_keys, h, d, e, *, bias=True, packed=False):
    torch.manual_seed(0)
    q, k, v = torch.randn(b, num_queries, h, d), torch.randn(b, num_keys, h, d), torch.randn(b, num_keys, h, e)
    if packed:  # as slices of one product
        k, v = (torch.cat([x, x], dim=1).unflatten(1, (2, -1)).transpose(1, 2)[:, :, 0] for x in (k, v))
    leaves = [q, k, v, torch.randn(h, num_queries, num_keys) if bias else None, torch.randn(h, e, e) / e**0.5]
    return [None if leaf is None else leaf.requires_grad_() for leaf in leaves]


def compute(attend, leaves):
    q, k, v, bias, weight = leaves
    out = attend(q, k, v, AttentionOptions("rms_head", "hyper_deep", bias, deep_weight=weight))
    out = out if isinstance(out, torch.Tensor) else out[0]
    torch.manual_seed(1)
    given = [leaf for leaf in leaves if leaf is not None]
    return out, *torch.autograd.grad(out, given, torch.randn(out.shape).to(out.dtype))


def compare(leaves):
    exact = [None if leaf is None else leaf.detach().double().requires_grad_() for leaf in leaves]
    for found, expected in zip(compute(deep.attend, leaves), compute(definition.attend, exact), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("sizes", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients(sizes, bias):
    compare(draw(*sizes, bias=bias, packed=bias))


@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-mno-avx",)], ids=["avx2", "sse"])
def test_other_vectors(flags, monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, *flags))
    cpu.open_library.cache_clear()
    try:
        if isinstance(reason := cpu.open_library("deep.c"), str):
            pytest.skip(reason)
        compare(draw(*CASES[0]))
    finally:
        cpu.open_library.cache_clear()


def test_bits_do_not_depend_on_threads():
    before, found, leaves = torch.get_num_threads(), [], draw(40, 9, 9, 8, 4, 4)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(compute(deep.attend, leaves))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_second_derivatives():
    leaves = draw(1, 3, 4, 4, 2, 2)

    def differentiate_twice(attend):
        out = attend(*leaves[:3], AttentionOptions("rms_head", "hyper_deep", leaves[3], deep_weight=leaves[4]))
        grads = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), leaves)

    define = lambda *arguments: definition.attend(*arguments)[0]  # noqa: E731
    for found, expected in zip(differentiate_twice(deep.attend), differentiate_twice(define), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_nan_is_never_hidden():
    q, k, v, bias, weight = draw(2, 3, 5, 4, 2, 2)
    with torch.no_grad():
        v[1, 2, 0, 0] = torch.nan
        out = deep.attend(q, k, v, AttentionOptions("rms_head", "hyper_deep", bias, deep_weight=weight))
    assert out[1].isnan().any()
    assert not out[0].isnan().any()


@pytest.mark.parametrize(
    "change",
    [
        {"causal": True},
        {"mask": torch.ones(5, dtype=torch.bool)},
        {"normalisation": "none"},
        {"bias": torch.ones(3, 1, 1, 1)},
    ],
)
def test_what_it_does_not_support(change):
    q, k, v, bias, weight = draw(*CASES[0])
    options = AttentionOptions("rms_head", "hyper_deep", bias, deep_weight=weight)
    assert deep.supports(q, k, v, options)
    assert not deep.supports(q, k, v, options._replace(**change))
    assert not deep.supports(q.double(), k, v, options)
