"""Random cases of attention, and how a kernel is compared with the definition on them."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume

from recombine.attention import definition
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions, Dropout

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


BF16_UNIT = 2**-8


def relative_error(got, exact):
    return ((got.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30)).item()


def assert_close(got, exact, plain, dtype):
    """Nearly as close to float64 as the definition in float32 is; in bf16 only inputs and outputs are rounded."""
    if dtype == torch.float32:
        assert_agree(got, exact, plain)
        return
    for ours, value, rounded in zip(got, exact, plain, strict=True):
        error, slack = relative_error(ours, value), 8 * relative_error(rounded, value) + 2e-5
        assert error <= BF16_UNIT + slack, f"error {error:.2e}"


def is_well_posed(case, choice, **options):
    """Whether no rectified value is so close to 0 that rounding could flip it, and no norm so small that rounding grows."""
    q, k, v = (tensor.double() for tensor in case.qkv)
    if choice[0] == "rms_head":
        norms = definition.score(q, k, case.bias).square().mean(dim=1).sqrt()
        if norms.min() < 0.01:
            return False
    if choice[1] != "hyper_relu":
        return True
    options = {"bias": case.bias, "mask": case.mask, "value_network": "linear", "normalisation": choice[0], **options}
    hidden = torch.einsum("bhqk,bkhe->bqke", definition.attend(q, k, v, AttentionOptions(**options))[1], v)
    used = hidden[hidden != 0].abs()
    return used.numel() == 0 or used.min().item() > 1e-5 * used.max().item()


def compare_attention(attend, dtype, seed, choice, causal, dropout, **sizes):
    case = draw_case(seed, **sizes)
    case.qkv = [tensor.to(dtype) for tensor in case.qkv]  # what both are given; the definition then computes in float64
    case.grad_out = case.grad_out.to(dtype)
    case.bias = None if case.bias is None else case.bias.float()
    options = {"causal": causal}
    if dropout is not None:
        options["dropout"] = Dropout(dropout[1], dropout[0], torch.tensor(seed))
    assume(is_well_posed(case, choice, **options))
    exact, plain = (by_definition(case, choice, dtype=each, **options) for each in (torch.float64, torch.float32))
    options |= {"normalisation": choice[0], "value_network": choice[1], "mask": case.mask}
    got = evaluate(case, dtype, lambda q, k, v, bias: attend(q, k, v, bias=bias, **options))
    assert_close(got, exact, plain, dtype)


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
