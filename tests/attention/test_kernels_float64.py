"""Every kernel against its definition in float64, over random shapes and settings: values and gradients, float32 and bf16.

The files of the single kernels test their special paths. Here everything that can be combined is combined, with a bound for
the error that depends on the precision alone. `pytest -m slow` tries some thousand more cases.
"""

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from attention_cases import CHOICES, MASKS, assert_agree, by_definition, draw_case, evaluate, needs_kernel
from recombine.attention import chunked, linear, sdpa
from recombine.attention import definition as reference
from recombine.attention.cpu import attention as cpu
from recombine.attention.cpu import gelu, norm, onednn, weight_gradient
from recombine.attention.dropout import Dropout

BF16_UNIT = 2**-8
FEW, MANY = settings(max_examples=25), settings(max_examples=1_500, deadline=None)
PRECISIONS = (torch.float32, torch.bfloat16)
needs_compiler = pytest.mark.skipif(isinstance(gelu.open_library(), str), reason="no C compiler")

SIZES = {
    "b": st.integers(1, 3),
    "q": st.integers(1, 24),
    "k": st.integers(1, 24),
    "h": st.integers(1, 17),
    "d": st.integers(1, 9),
    "e": st.integers(1, 6),
}
ATTENTION = SIZES | {
    "seed": st.integers(0, 10_000),
    "choice": st.sampled_from(CHOICES),
    "bias": st.sampled_from([None, "shared", "batch", "broadcast"]),
    "mask": st.sampled_from([None, *MASKS]),
    "packed": st.booleans(),
    "causal": st.booleans(),
    "dropout": st.sampled_from([None, ("pairs", 0.1), ("elements", 0.1), ("pairs", 0.9), ("elements", 0.5)]),
}


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
        norms = reference.score(q, k, case.bias).square().mean(dim=1).sqrt()
        if norms.min() < 0.01:
            return False
    if choice[1] != "hyper_relu":
        return True
    options = {"bias": case.bias, "mask": case.mask, "value_network": "linear", "normalisation": choice[0], **options}
    hidden = torch.einsum("bhqk,bkhe->bqke", reference.attend(q, k, v, **options)[1], v)
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


@needs_kernel
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@FEW
@given(**ATTENTION)
def test_attention(dtype, **drawn):
    compare_attention(cpu.attend, dtype, **drawn)


@needs_kernel
@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@MANY
@given(**ATTENTION)
def test_much_attention(dtype, **drawn):
    compare_attention(cpu.attend, dtype, **drawn)


@FEW
@given(**ATTENTION, chunk_size=st.integers(1, 30))
def test_attention_in_chunks_of_queries(chunk_size, **drawn):
    compare_attention(
        lambda *qkv, **options: chunked.attend(*qkv, chunk_size=chunk_size, **options), torch.float32, **drawn
    )


LINEAR = SIZES | {
    "q": st.integers(1, 300),
    "k": st.integers(1, 300),
    "seed": st.integers(0, 10_000),
    "choice": st.sampled_from([("none", network) for network in linear.VALUE_NETWORKS]),
    "mask": st.sampled_from([None, "keys"]),
    "causal": st.booleans(),
}


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@FEW
@given(**LINEAR)
def test_linear_attention_in_chunks_of_tokens(dtype, **drawn):
    compare_attention(linear.attend, dtype, dropout=None, **drawn)


@FEW
@given(**{**SIZES, "q": st.integers(1, 90), "seed": st.integers(0, 10_000), "causal": st.booleans()})
def test_attention_of_torch(q, k, d, e, causal, **drawn):
    sizes = {"q": q, "k": q if causal else k, "d": d, "e": d, "choice": ("softmax", "linear")}
    compare_attention(sdpa.attend, torch.float32, dropout=None, causal=causal, **sizes, **drawn)


LAYER = {
    "seed": st.integers(0, 10_000),
    "rows": st.integers(1, 400),
    "inputs": st.integers(1, 130),
    "outputs": st.integers(1, 130),
    "scale": st.sampled_from([0.01, 1.0, 10.0]),
}


def draw_tensors(seed, dtype, *shapes):
    """Random tensors that the precision holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def differentiate(function, tensors, grad_out, dtypes):
    leaves = [tensor.to(dtype).requires_grad_() for tensor, dtype in zip(tensors, dtypes, strict=True)]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out.to(out.dtype))]


def compare_layer(fast, definition, tensors, grad_out, dtype):
    """The first tensor has the precision, the others are parameters in float32."""
    parameters = len(tensors) - 1
    got = differentiate(fast, tensors, grad_out, [dtype, *[torch.float32] * parameters])
    exact, plain = (
        differentiate(definition, tensors, grad_out, [each] * (parameters + 1))
        for each in (torch.float64, torch.float32)
    )
    assert_close(got, exact, plain, dtype)


def check_gelu(dtype, seed, rows, outputs, scale, **_):
    hidden, grad_out = draw_tensors(seed, dtype, (rows, outputs), (rows, outputs))
    (bias,) = draw_tensors(seed + 1, torch.float32, (outputs,))

    def definition(hidden, bias):
        return functional.gelu(hidden + bias, approximate="tanh")

    compare_layer(gelu.add_gelu, definition, [hidden * scale, bias], grad_out, dtype)


def check_norm(dtype, seed, rows, outputs, scale, **_):
    total, grad_out = draw_tensors(seed, dtype, (rows, outputs + 1), (rows, outputs + 1))  # one number has no variance
    gain, shift = draw_tensors(seed + 1, torch.float32, (outputs + 1,), (outputs + 1,))

    def definition(total, gain, shift):
        return functional.layer_norm(total, gain.shape, gain, shift, 1e-6)

    def fused(total, gain, shift):
        return norm.add_norm(total, None, gain, shift, 1e-6)[1]

    deviation = total.double().std(dim=-1, correction=0).min()
    assume(deviation > 0.1)  # rounding is divided by it, twice in the gradients
    compare_layer(fused, definition, [total * scale, gain, shift], grad_out, dtype)


def check_weight_gradient(dtype, seed, rows, inputs, outputs, scale):
    x, grad_out = draw_tensors(seed, torch.float32, (rows, inputs), (rows, outputs))
    weight, bias = weight_gradient.differentiate(x * scale, grad_out, needs_bias=True)
    assert_agree(
        [weight, bias],
        [grad_out.double().t() @ (x * scale).double(), grad_out.double().sum(dim=0)],
        [grad_out.t() @ (x * scale), grad_out.sum(dim=0)],
    )


def check_dense(dtype, seed, rows, inputs, outputs, scale):
    if onednn.find_operator() is None:
        pytest.skip("this build of torch has no oneDNN")
    x, grad_out = draw_tensors(seed, torch.float32, (rows, inputs), (rows, outputs))
    weight, bias = draw_tensors(seed + 1, torch.float32, (outputs, inputs), (outputs,))
    compare_layer(onednn.dense, functional.linear, [x * scale, weight, bias], grad_out, torch.float32)


LAYERS: list[Any] = [(check_gelu, dtype) for dtype in PRECISIONS] + [(check_norm, dtype) for dtype in PRECISIONS]
LAYERS += [(check_weight_gradient, torch.float32), (check_dense, torch.float32)]
each_layer = pytest.mark.parametrize(("check", "dtype"), LAYERS, ids=lambda each: getattr(each, "__name__", str(each)))


@needs_compiler
@each_layer
@FEW
@given(**LAYER)
def test_layers(check, dtype, **drawn):
    check(dtype, **drawn)


@needs_compiler
@pytest.mark.slow
@each_layer
@MANY
@given(**LAYER)
def test_many_layers(check, dtype, **drawn):
    check(dtype, **drawn)
