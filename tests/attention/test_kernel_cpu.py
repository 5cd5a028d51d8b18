"""The fused CPU kernel: the same values and gradients as the definition, deterministic, one graph, and little memory."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import CHOICES, MASKS, by_definition, by_kernel, check, draw_case, evaluate, needs_kernel
from recombine.attention.cpu import attention as cpu
from recombine.attention.cpu import attention as cpu_library
from recombine.foundation import native as compiler
from recombine.foundation.errors import InputError


@needs_kernel
@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    choice=st.sampled_from(CHOICES),
    b=st.integers(1, 5),
    q=st.integers(1, 40),
    k=st.integers(1, 40),
    h=st.integers(1, 17),
    d=st.integers(1, 9),
    e=st.integers(1, 9),
    bias=st.sampled_from([None, "shared", "batch", "broadcast"]),
    causal=st.booleans(),
    mask=st.sampled_from([None, *MASKS]),
    packed=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_definition(seed, choice, causal, **sizes):
    check(draw_case(seed, **sizes), choice, causal=causal)


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
    ids=lambda sizes: "x".join(str(size) for size in sizes.values()),
)
def test_special_paths(choice, sizes):
    # a relu whose input is within rounding of 0 may flip: these seeds have none
    check(draw_case(3, **sizes), choice, causal=sizes["b"] == 3)


@needs_kernel
def test_vectors_of_four_as_on_arm(monkeypatch):
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-DRECOMBINE_NARROW"))
    cpu_library.open_library.cache_clear()
    try:
        for choice in CHOICES:
            check(draw_case(3, b=17, q=5, k=36, h=16, d=4, e=4, bias="shared", packed=True), choice)
            check(draw_case(4, b=2, q=30, k=80, h=5, d=7, e=3, bias="batch", mask="keys"), choice, causal=True)
    finally:
        cpu_library.open_library.cache_clear()


@needs_kernel
@pytest.mark.parametrize("choice", CHOICES)
def test_bfloat16_rounds_inputs_and_outputs_only(choice):
    case = draw_case(1, b=3, q=36, k=36, h=16, d=4, e=4, bias="shared", packed=True)
    case.qkv = [tensor.bfloat16() for tensor in case.qkv]
    case.grad_out = case.grad_out.bfloat16()
    got = by_kernel(case, choice, dtype=torch.bfloat16)
    want = by_definition(case, choice)
    assert [tensor.dtype for tensor in got] == [torch.bfloat16] * 4 + [torch.float32]
    for ours, exact, unit in zip(got, want, [2**-8] * 4 + [2e-5], strict=True):
        assert (ours.double() - exact).abs().max() <= unit * exact.abs().max()


@needs_kernel
def test_long_sequences_differ_only_where_a_relu_flips():
    case = draw_case(2, b=1, q=512, k=640, h=4, d=8, e=8)
    for ours, exact in zip(
        by_kernel(case, ("rms_head", "hyper_relu")), by_definition(case, ("rms_head", "hyper_relu")), strict=True
    ):
        error = (ours.double() - exact).abs() / exact.abs().mean()
        assert error.flatten().quantile(0.99) < 1e-4


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
@pytest.mark.parametrize("choice", CHOICES)
def test_a_query_without_keys_receives_zeros(choice):
    case = draw_case(6, b=2, q=7, k=4, h=3)
    out, *gradients = by_kernel(case, choice, causal=True)
    assert torch.equal(out[:, :3], torch.zeros_like(out[:, :3]))
    assert torch.equal(gradients[0][:, :3], torch.zeros_like(out[:, :3]))
    check(case, choice, causal=True)


@needs_kernel
@pytest.mark.parametrize("sizes", [{"b": 33, "q": 36, "k": 36, "h": 16, "d": 4, "e": 4}, {"b": 3, "q": 200, "k": 300}])
@pytest.mark.parametrize("choice", [("rms_head", "hyper_relu"), ("softmax", "linear"), ("softmax", "hyper_relu")])
def test_bits_do_not_depend_on_threads_or_runs(choice, sizes):
    case = draw_case(7, bias="shared", **sizes)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 3, 2):
            torch.set_num_threads(number)
            results.append(by_kernel(case, choice))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@needs_kernel
def test_second_derivatives_are_refused_not_wrong():
    q, k, v = (tensor.float().requires_grad_() for tensor in draw_case().qkv)
    out = cpu.attend(q, k, v, normalisation="none", value_network="linear")
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@needs_kernel
@pytest.mark.usefixtures("unchecked")
def test_one_graph_under_compile():
    torch._dynamo.reset()
    case = draw_case(8, bias="shared", mask="keys", q=11)

    def layer(q, k, v, bias):
        assert cpu.is_available()
        out = cpu.attend(
            q.sin(),
            k,
            v,
            normalisation="rms_head",
            value_network="hyper_relu",
            bias=bias,
            causal=True,
            mask=case.mask,
        )
        return out.flatten(-2).cos()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    case.grad_out = case.grad_out.flatten(-2)
    for ours, eager in zip(evaluate(case, torch.float32, compiled), evaluate(case, torch.float32, layer), strict=True):
        torch.testing.assert_close(ours, eager)


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
    plain: dict[str, Any] = {"normalisation": "rms_head", "value_network": "hyper_relu"}
    assert cpu.supports(q, k, v, **plain)
    assert not cpu.supports(q, k, v, normalisation="rms_head", value_network="hyper_deep")
    assert not cpu.supports(q.double(), k.double(), v.double(), **plain)
    assert not cpu.supports(q.bfloat16(), k, v, **plain)
    assert not cpu.supports(q[:, :0], k, v, **plain)
    assert not cpu.supports(q.to("meta"), k.to("meta"), v.to("meta"), **plain)
    with pytest.raises(InputError, match=r"no rms_head \+ hyper_relu for torch\.float64 on cpu"):
        cpu.attend(q.double(), k.double(), v.double(), **plain)


def test_without_a_compiler_it_says_so(tmp_path):
    program = "from recombine.attention.dispatch import cpu; print(cpu.is_available(), cpu.why_unavailable())"
    environment = {**os.environ, "PATH": "", "RECOMBINE_CACHE": str(tmp_path)}
    environment.pop("CC", None)
    outcome = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert outcome.stdout.startswith("False no C compiler on the PATH")


def test_an_unusable_cache_is_a_reason_not_a_crash(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "file" / "cache"))
    cpu_library.open_library.cache_clear()
    try:
        assert not cpu.is_available()
        assert "expected a writable directory" in (cpu.why_unavailable() or "")
        q, k, v = (tensor.float() for tensor in draw_case().qkv)
        with pytest.raises(InputError, match="not available"):
            cpu.attend(q, k, v, normalisation="none", value_network="linear")
    finally:
        cpu_library.open_library.cache_clear()
