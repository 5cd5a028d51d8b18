"""The C kernels: the values and gradients of their definitions, deterministic, one graph, and little memory.

Errors are bounded against the definition in float64 by what the precision allows.
"""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from attention_cases import (
    CHOICES,
    HYLA,
    MASKS,
    assert_agree,
    assert_close,
    assert_same_bits_with_any_threads,
    by_definition,
    by_kernel,
    check,
    compare_attention,
    draw_case,
    fuse,
    needs_kernel,
)
from recombine.attention import definition, dispatch
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions, ChunkRows, Dropout
from recombine.attention.dispatch import attend, use_kernel
from recombine.foundation import native
from recombine.foundation.errors import InputError

FEW = settings(max_examples=40)
PRECISIONS = (torch.float32, torch.bfloat16)
EPSILON = 1e-6
needs_onednn = pytest.mark.skipif(cpu.find_onednn() is None, reason="this build of torch has no oneDNN")

SIZES = {
    "b": st.integers(1, 3),
    "q": st.integers(1, 40),
    "k": st.integers(1, 40),
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


@needs_kernel
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@FEW
@given(**ATTENTION)
def test_attention(dtype, **drawn):
    compare_attention(fuse, dtype, **drawn)


def by_other(function):
    return lambda q, k, v, **options: function(q, k, v, AttentionOptions(**options))


@FEW
@given(**ATTENTION, chunk_size=st.integers(1, 30))
def test_attention_in_chunks_of_queries(chunk_size, **drawn):
    compare_attention(
        lambda q, k, v, **options: definition.attend_in_chunks(q, k, v, AttentionOptions(**options), chunk_size),
        torch.float32,
        **drawn,
    )


@FEW
@given(**{**SIZES, "q": st.integers(1, 90), "seed": st.integers(0, 10_000), "causal": st.booleans()})
def test_attention_of_torch(q, k, d, e, causal, **drawn):
    sizes = {"q": q, "k": q if causal else k, "d": d, "e": d, "choice": ("softmax", "linear")}
    compare_attention(by_other(dispatch.attend_sdpa), torch.float32, dropout=None, causal=causal, **sizes, **drawn)


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

    compare_layer(cpu.add_gelu, definition, [hidden * scale, bias], grad_out, dtype)


def check_weight_gradient(dtype, seed, rows, inputs, outputs, scale):
    x, grad_out = draw_tensors(seed, torch.float32, (rows, inputs + 3), (rows, outputs + 1))
    x, grad_out = (x * scale)[:, :inputs], grad_out[:, 1:]
    got = cpu.dense_gradients(x, grad_out, needs_bias=True)
    exact, plain = (
        [each[1].t() @ each[0], each[1].sum(dim=0)] for each in ((x.double(), grad_out.double()), (x, grad_out))
    )
    assert_agree(got, exact, plain)


def check_dense(dtype, seed, rows, inputs, outputs, scale):
    if cpu.find_onednn() is None:
        pytest.skip("this build of torch has no oneDNN")
    x, grad_out = draw_tensors(seed, torch.float32, (rows, inputs), (rows, outputs))
    weight, bias = draw_tensors(seed + 1, torch.float32, (outputs, inputs), (outputs,))
    compare_layer(cpu.dense, functional.linear, [x * scale, weight, bias], grad_out, torch.float32)


LAYERS: list[Any] = [(check_gelu, dtype) for dtype in PRECISIONS]
LAYERS += [(check_weight_gradient, torch.float32), (check_dense, torch.float32)]
each_layer = pytest.mark.parametrize(("check", "dtype"), LAYERS, ids=lambda each: getattr(each, "__name__", str(each)))


@needs_kernel
@each_layer
@FEW
@given(**LAYER)
def test_layers(check, dtype, **drawn):
    check(dtype, **drawn)


def draw_dropout(form="pairs", rate=0.3, key=-123456789):
    return None if form is None else Dropout(rate, form, torch.tensor(key))


@needs_kernel
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "sizes",
    [
        {"b": 17, "q": 20, "k": 36, "h": 16, "d": 4, "e": 4, "bias": "shared", "packed": True},  # SRAVEN
        {"b": 17, "q": 9, "k": 32, "h": 8, "d": 2, "e": 2, "bias": "shared", "packed": True},  # fuzzy logic
        {"b": 2, "q": 30, "k": 80, "h": 8, "d": 64, "e": 64},  # language: several blocks of keys
        {"b": 3, "q": 90, "k": 300, "h": 5, "d": 6, "e": 5, "bias": "shared"},  # threads share batch elements
        {"b": 16, "q": 20, "k": 90, "h": 5, "d": 3, "e": 2, "bias": "batch", "mask": "keys"},  # several blocks
    ],
    ids=["sraven", "fuzzy_logic", "language", "shared", "masked"],
)
@pytest.mark.parametrize("form", [None, "pairs", "elements"])
def test_special_paths(choice, form, sizes):
    # a relu whose input is within rounding of 0 may flip: these seeds have none
    check(draw_case(3, **sizes), choice, causal=sizes["b"] == 3, dropout=draw_dropout(form))


@needs_kernel
def test_vectors_of_four_as_on_arm(monkeypatch):
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DRECOMBINE_NARROW"))
    cpu.open_library.cache_clear()
    try:
        for choice in CHOICES:
            check(draw_case(3, b=17, q=5, k=36, h=16, d=4, e=4, bias="shared", packed=True), choice)
            check(draw_case(4, b=2, q=30, k=80, h=5, d=7, e=3, bias="batch", mask="keys"), choice, causal=True)
    finally:
        cpu.open_library.cache_clear()


@needs_kernel
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("spoiled", range(3), ids=["q", "k", "v"])
def test_nan_is_never_hidden(choice, spoiled):
    case = draw_case(5, b=2, q=6, k=9, h=4, d=2, e=2)
    case.qkv[spoiled][0, 1, 2, 0] = torch.nan
    ours, exact = by_kernel(case, choice)[0], by_definition(case, choice)[0]
    assert exact.isnan().any()
    assert torch.equal(ours.isnan(), exact.isnan())


@needs_kernel
@pytest.mark.parametrize("sizes", [{"b": 33, "q": 36, "k": 36, "h": 16, "d": 4, "e": 4}, {"b": 3, "q": 200, "k": 300}])
@pytest.mark.parametrize("choice", [("rms_head", "hyper_relu"), ("softmax", "linear"), ("softmax", "hyper_relu")])
@pytest.mark.parametrize("form", [None, "pairs", "elements"])
def test_bits_do_not_depend_on_threads(choice, sizes, form):
    case = draw_case(7, bias="shared", **sizes)
    assert_same_bits_with_any_threads(lambda: by_kernel(case, choice, dropout=draw_dropout(form)))


@needs_kernel
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("choice", [("rms_head", "hyper_relu"), ("softmax", "linear")])
def test_the_operators_keep_the_rules_of_torch(choice):
    case = draw_case(9, bias="shared", mask="pairs")
    q, k, v = (tensor.float().requires_grad_() for tensor in case.qkv)
    bias = case.bias.float()[None].requires_grad_()
    mask, key = case.mask.expand(len(q), 4, 5, 11), torch.tensor(1)
    arguments = (q, k, v, bias, mask, key, *choice, True, "elements", 0.3)
    torch.library.opcheck(torch.ops.recombine.attend_forward.default, arguments)
    out, statistics = torch.ops.recombine.attend_forward(*arguments)
    out, statistics, q, k, v, bias = (tensor.detach() for tensor in (out, statistics, q, k, v, bias))
    arguments = (out.clone(), q, k, v, bias, mask, key, out, statistics, *choice, True, "elements", 0.3, True)
    torch.library.opcheck(torch.ops.recombine.attend_backward.default, arguments)


def peak_memory(function) -> int:
    """Bytes by which the peak of resident memory rose during a call."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")

    def read(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

    before = read("VmRSS")
    function()
    return read("VmHWM") - before


@needs_kernel
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="resident memory cannot be read here")
@pytest.mark.parametrize("choice", [("rms_head", "hyper_relu"), ("softmax", "hyper_relu"), ("softmax", "linear")])
def test_memory_is_linear_in_length(choice):
    small, large = (draw_case(b=1, q=n, k=n, h=2, d=4, e=4) for n in (1024, 4096))
    by_kernel(small, choice)
    # 2 x 4096 x 4096 codes would be 134 MB; linear are 4096 tokens x 8 features x some ten tensors, and the float64 inputs
    assert peak_memory(lambda: by_kernel(large, choice, dtype=torch.float32)) < 24e6


def test_what_it_does_not_support():
    q, k, v = (tensor.float() for tensor in draw_case().qkv)
    options = AttentionOptions(**HYLA)
    assert cpu.supports(q, k, v, options)
    assert not cpu.supports(q, k, v, options._replace(value_network="hyper_deep"))
    assert not cpu.supports(q, k, v, options._replace(dropout=draw_dropout()._replace(rows=ChunkRows(1, 9, 9))))
    assert not cpu.supports(q.double(), k.double(), v.double(), options)
    assert not cpu.supports(q.bfloat16(), k, v, options)
    assert not cpu.supports(q[:, :0], k, v, options)
    assert not cpu.supports(q.to("meta"), k.to("meta"), v.to("meta"), options)


def test_an_unusable_cache_is_a_reason_not_a_crash(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "file" / "cache"))
    cpu.open_library.cache_clear()
    try:
        assert not cpu.is_available()
        assert "expected a writable directory" in (cpu.why_unavailable() or "")
        q, k, v = (tensor.float() for tensor in draw_case().qkv)
        with use_kernel("cpu"), pytest.raises(InputError, match="not available"):
            attend(q, k, v, **HYLA, return_codes=False)
    finally:
        cpu.open_library.cache_clear()


@needs_kernel
def test_gelu_of_far_values_and_nan():
    hidden = torch.tensor([[-1e30, -100.0, -1e-30, 0.0, 1e-30, 100.0, 1e30, torch.nan, torch.inf]])
    out = cpu.add_gelu(hidden, torch.zeros(9))[0]
    assert out[:7].tolist() == pytest.approx([0, 0, -0.5e-30, 0, 0.5e-30, 100, 1e30], rel=1e-6, abs=1e-7)
    assert out[7].isnan()
    assert out[8] == torch.inf


@needs_kernel
@pytest.mark.parametrize("width", [3, 16])  # part of a vector, and whole ones
def test_gelu_in_bf16_is_rounded_as_torch_rounds_it(width):
    bias = torch.tensor([1.0, 3.0, 1.01, -1.0, 0.5, torch.nan, torch.inf, 1e30]).repeat(2)[:width]
    hidden = torch.full((1, width), 256.0, dtype=torch.bfloat16)
    expected = (hidden.float() + bias).bfloat16()  # so far from zero, GELU returns its argument
    torch.testing.assert_close(cpu.add_gelu(hidden, bias), expected, rtol=0, atol=0, equal_nan=True)


def define_norm(residual, update, gain, shift, epsilon=EPSILON):
    total = residual if update is None else residual + update
    return total * 1, functional.layer_norm(total, gain.shape, gain, shift, epsilon)


def add_norm(residual, update, gain, shift):
    return cpu.add_norm(residual, update, gain, shift, EPSILON)


def draw_norm(*shape, with_update=True, offset=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    residual, update, *grads = (torch.randn(*shape, generator=generator) for _ in range(4))
    gain, shift = torch.randn(2, shape[-1], generator=generator)
    return [residual + offset, update if with_update else None, gain, shift], grads


def differentiate_norm(function, arguments, grads, dtype, used=(0, 1)):
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
def test_norm_values_and_gradients_are_those_of_the_definition(shape, with_update, used, offset):
    arguments, grads = draw_norm(*shape, with_update=with_update, offset=offset)
    expected = differentiate_norm(define_norm, arguments, grads, torch.float64, used)
    actual = differentiate_norm(add_norm, arguments, grads, torch.float32, used)
    # where the numbers of a row nearly agree, rounding errors are divided by almost nothing: once, and twice in gradients
    deviation = (expected[0].var(dim=-1, correction=0) + EPSILON).sqrt().min().item()
    for mine, exact in zip(actual, expected, strict=True):
        error = 1e-6 * max(1.0, exact.abs().max().item()) * (1 + offset)
        assert (mine.double() - exact).abs().max() <= error * max(1.0, 1 / deviation) ** 2


@needs_kernel
@pytest.mark.parametrize("default_type", [torch.float32, torch.float64, torch.bfloat16])
def test_parameters_may_have_gaps_and_the_default_type_does_not_matter(default_type):
    (residual, update, gain, shift), grads = draw_norm(8, 32)
    gain, shift = (x.repeat_interleave(2)[::2] for x in (gain, shift))
    expected = differentiate_norm(define_norm, [residual, update, gain, shift], grads, torch.float64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default_type)
    try:
        found = differentiate_norm(add_norm, [residual, update, gain, shift], grads, torch.float32)
    finally:
        torch.set_default_dtype(before)
    for mine, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)


@needs_kernel
def test_norm_bf16_keeps_what_it_normalised():
    arguments, grads = draw_norm(3, 50, 33)
    residual, update = (x.bfloat16() for x in arguments[:2])
    total, normed = add_norm(residual, update, *arguments[2:])
    assert total.dtype == normed.dtype == torch.bfloat16
    assert torch.equal(total, residual + update)
    exact = define_norm(total.double(), None, *(x.double() for x in arguments[2:]))[1]
    torch.testing.assert_close(normed.double(), exact, rtol=2**-8, atol=1e-5)
    leaves = [residual.requires_grad_(), update.requires_grad_(), *(x.requires_grad_() for x in arguments[2:])]
    out = add_norm(*leaves)
    found = torch.autograd.grad(out, leaves, [x.bfloat16() for x in grads])
    precise = differentiate_norm(define_norm, arguments, grads, torch.float64)[2:]
    for mine, theirs in zip(found, precise, strict=True):
        assert (mine.double() - theirs).norm() < 0.02 * theirs.norm()


@needs_kernel
def test_norm_nan_stays_nan():
    arguments, _ = draw_norm(9, 16)
    arguments[0][4, 3] = torch.nan
    normed = add_norm(*arguments)[1]
    assert normed.isnan().any(dim=1).tolist() == [row == 4 for row in range(9)]


@needs_kernel
def test_bits_of_layers_do_not_depend_on_threads():
    arguments, grads = draw_norm(5, 100, 19)
    hidden, bias = arguments[0], arguments[2]
    rows = [x.flatten(0, 1) for x in grads]

    def compute():
        leaves = [hidden.clone().requires_grad_(), bias.clone().requires_grad_()]
        gelu = torch.autograd.grad(cpu.add_gelu(*leaves), leaves, grads[0])
        norm = differentiate_norm(add_norm, arguments, grads, torch.float32)
        return [*gelu, *norm, *cpu.dense_gradients(*rows, needs_bias=True)]

    assert_same_bits_with_any_threads(compute)


@needs_onednn
@pytest.mark.parametrize("compiler", [True, False])
@pytest.mark.parametrize("wanted", [(0, 1, 2), (0, 1), (0,), (1,), (2,)], ids=str)  # which of x, weight and bias
@pytest.mark.parametrize("shape", [(3, 50, 24), (1, 24)])
def test_onednn_is_the_same_layer_whichever_gradients_are_wanted(monkeypatch, shape, wanted, compiler):
    if not compiler:
        monkeypatch.setattr(cpu, "open_library", lambda source: "no C compiler")
    tensors = draw_tensors(0, torch.float32, shape, (40, 24), (40,))[: 2 if wanted == (0, 1) else 3]

    def differentiate_some(function, dtype):
        leaves = [tensor.to(dtype).requires_grad_(i in wanted) for i, tensor in enumerate(tensors)]
        out = function(*leaves)
        return out, *torch.autograd.grad(out, [leaves[i] for i in wanted], torch.cos(out.detach()))

    exact = differentiate_some(functional.linear, torch.float64)
    found = differentiate_some(lambda x, weight, bias=None: cpu.dense(x, weight, bias), torch.float32)
    for mine, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-2)
