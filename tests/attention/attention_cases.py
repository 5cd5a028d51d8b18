"""Random cases of attention, and how a kernel is compared with the definition on them."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recombine.attention import definition
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions

needs_kernel = pytest.mark.skipif(not cpu.is_available(), reason=f"no kernel: {cpu.why_unavailable()}")

CHOICES = [
    choice
    for choice in itertools.product(cpu.NORMALISATIONS, cpu.VALUE_NETWORKS)
    if choice[0] != "softmax_rms_head" or choice[1].startswith("hyper")
]
HYLA: dict[str, Any] = {"normalisation": "rms_head", "value_network": "hyper_relu"}
SOFTMAX: dict[str, Any] = {"normalisation": "softmax", "value_network": "linear"}
MASKS = {
    "keys": lambda b, h, q, k: (b, 1, 1, k),
    "queries": lambda b, h, q, k: (q, 1),
    "pairs": lambda b, h, q, k: (q, k),
    "batch": lambda b, h, q, k: (b, 1, q, k),
    "heads": lambda b, h, q, k: (h, q, k),
    "everything": lambda b, h, q, k: (b, h, q, k),
}


def draw_case(seed=0, *, b=3, q=5, k=11, h=4, d=3, e=3, bias=None, mask=None, packed=False):
    """Random tensors in float64; `packed` makes q, k and v strided views of one tensor, as one projection gives them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors = [draw(b, q, h, d), draw(b, k, h, d), draw(b, k, h, e)]
    if packed:
        everything = draw(b, max(q, k), h * (2 * d + e) + 3)
        parts = everything[..., 1:-2].split([h * d, h * d, h * e], dim=-1)
        tensors = [part[:, -n:].unflatten(-1, (h, -1)) for part, n in zip(parts, (q, k, k), strict=True)]
    pairs = {None: None, "shared": (h, q, k), "batch": (b, h, q, k), "broadcast": (h, 1, k)}[bias]
    drawn_bias = None if pairs is None else draw(*pairs)
    allowed = None
    if mask is not None:
        allowed = torch.rand(MASKS[mask](b, h, q, k), generator=generator) < 0.7
        (allowed[0] if mask == "keys" else allowed[..., 0, :]).fill_(False)  # a row, or a query, that sees nothing
    return SimpleNamespace(qkv=tensors, bias=drawn_bias, mask=allowed, grad_out=draw(b, q, h, e))


def evaluate(case, dtype, function):
    """Output and gradients of q, k, v and bias; tensors keep their strides."""
    # a view of a changed base keeps its strides only if the base is converted and viewed again
    leaves = [torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x).requires_grad_() for x in case.qkv]
    if case.bias is not None:
        leaves.append(case.bias.to(torch.promote_types(dtype, torch.float32)).requires_grad_())
    out = function(*leaves[:3], bias=leaves[3] if len(leaves) > 3 else None)
    gradients = torch.autograd.grad(out, leaves, case.grad_out.to(dtype))
    return [out.detach(), *gradients]


def define(q, k, v, **options):
    """The definition of attention, without codes."""
    return definition.attend(q, k, v, AttentionOptions(**options))[0]


def fuse(q, k, v, **options):
    """The same by the CPU kernel."""
    return cpu.attend(q, k, v, AttentionOptions(**options))


def by_kernel(case, choice, *, dtype=torch.float32, **options):
    options |= {"normalisation": choice[0], "value_network": choice[1], "mask": case.mask}
    return evaluate(case, dtype, lambda q, k, v, bias: fuse(q, k, v, bias=bias, **options))


def by_definition(case, choice, *, dtype=torch.float64, **options):
    options |= {"normalisation": choice[0], "value_network": choice[1], "mask": case.mask}
    return evaluate(case, dtype, lambda q, k, v, bias: define(q, k, v, bias=bias, **options))


def assert_agree(got, want, plain, tolerance=2e-5):
    """As close to float64 as the scale of the numbers allows, or nearly as close as the definition in float32 is."""
    floor = 1e-6 * max(
        exact.abs().max() for exact in want
    )  # a gradient may be exactly 0, as that of a single key's score
    for ours, exact, rounded in zip(got, want, plain, strict=True):
        error = (ours.double() - exact).abs().max()
        allowed = tolerance * exact.abs().max() + 8 * (rounded.double() - exact).abs().max()
        assert error <= allowed + floor + 1e-30, f"error {error:.2e}, allowed {allowed:.2e}"


def check(case, choice, **options):
    """Output and gradients of the CPU kernel are those of the definition."""
    want, plain = (by_definition(case, choice, dtype=dtype, **options) for dtype in (torch.float64, torch.float32))
    assert_agree(by_kernel(case, choice, **options), want, plain)


def assert_same_bits_with_any_threads(function):
    """`function` returns tensors; with None where there is none."""
    before, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 5):
            torch.set_num_threads(number)
            results.append(function())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
