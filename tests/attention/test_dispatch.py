"""Dispatch: the fast path where it may, the definition where it must, and the same checks and numbers either way."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from attention_cases import CHOICES, HYLA, SOFTMAX, assert_agree, define, fuse, needs_kernel
from recombine.attention import definition, dispatch, linear, triton
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import Dropout
from recombine.attention.dispatch import add_norm, attend, dense, linear_gelu, use_kernel
from recombine.attention.layer import lecun_linear
from recombine.foundation.errors import InputError
from recombine.models.transformer import ResidualNorm, build_feedforward
from spies import record_calls

LINEAR: dict[str, Any] = {"normalisation": "none", "value_network": "linear"}
needs_onednn = pytest.mark.skipif(cpu.find_onednn() is None, reason="this build of torch has no oneDNN")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def attend_by(kernel, q, k, v, **options):
    """What each head receives, without codes, by one kernel."""
    with use_kernel(kernel):
        return attend(q, k, v, return_codes=False, **options)[0]


def differentiate(function, *tensors, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, **options)
    return out, *torch.autograd.grad(out, leaves, draw(*out.shape).to(out.dtype))


Q, K, V = draw(2, 3, 4, 2), draw(2, 5, 4, 2), draw(2, 5, 4, 2) + 0.1


@pytest.fixture
def calls(monkeypatch):
    """The paths that were taken."""
    taken = []
    functions = [("cpu", cpu, "attend"), ("reference", definition, "attend"), ("linear", linear, "attend")]
    functions += [("chunked", definition, "attend_in_chunks"), ("sdpa", dispatch, "attend_sdpa")]
    for name, module, attribute in functions:
        function = getattr(module, attribute)

        def record(*arguments, _name=name, _function=function):
            taken.append(_name)
            return _function(*arguments)

        monkeypatch.setattr(module, attribute, record)
    return taken


@needs_kernel
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"return_codes": False}, "cpu"),
        ({"return_codes": False, "causal": True}, "cpu"),
        ({"return_codes": False, "mask": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, "cpu"),
        ({"return_codes": False, "bias": torch.ones(4, 3, 5)}, "cpu"),
        ({}, "reference"),
        ({"return_codes": False, "code_map": torch.relu}, "reference"),
        ({"return_codes": False, "mask": torch.ones(3, 5, dtype=torch.bool), "causal": True}, "cpu"),
        ({"return_codes": False, "mask": torch.ones(2, 4, 3, 5, dtype=torch.bool)}, "cpu"),
        ({"return_codes": False, "dropout": Dropout(0.5, "pairs", torch.tensor(1))}, "cpu"),
        ({"return_codes": False, "dropout": Dropout(0.5, "elements", torch.tensor(1))}, "cpu"),
    ],
)
def test_the_path_taken(calls, options, path):
    out, codes = attend(Q, K, V, **HYLA, **options)
    assert calls == [path]
    assert (codes is None) == (not options.get("return_codes", True))
    expected, _ = attend(Q, K, V, **HYLA, **{**options, "return_codes": True})
    torch.testing.assert_close(out, expected)


@needs_kernel
@pytest.mark.parametrize("kernel", ["reference", "chunked", "cpu", "triton"])
def test_a_forced_kernel_is_used_where_it_can_be(calls, kernel):
    if kernel == "triton" and triton.is_available():
        pytest.skip("Triton works here")
    if kernel != "triton":
        torch.testing.assert_close(attend_by(kernel, Q, K, V, **HYLA), define(Q, K, V, **HYLA))
        assert kernel in calls
    calls.clear()
    with use_kernel(kernel):  # what no fused kernel has: codes, and float64
        attend(Q, K, V, **HYLA)
        attend(Q.double(), K.double(), V.double(), return_codes=False, **HYLA)
    assert set(calls) <= {"reference", "chunked"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"normalisation": "rms_head"},
        {"value_network": "hyper_relu"},
        {"bias": torch.zeros(7, 9)},
        {"mask": torch.zeros(7, 9, dtype=torch.bool)},  # a query without any key receives zeros
        {"dropout": Dropout(0.5, "pairs", torch.tensor(1))},
    ],
)
def test_what_a_shorter_way_does_not_support(monkeypatch, unchecked, wrong):
    for name in ("linear_is_faster", "sdpa_is_faster"):
        monkeypatch.setattr(dispatch, name, lambda q, k, causal: True)
    q, k, v = draw(1, 7, 2, 16), draw(1, 9, 2, 16), draw(1, 9, 2, 16)
    # 7 queries and 9 keys: aligned at the end if causal, which torch's function does not do
    for options in ({**SOFTMAX, **wrong}, {**LINEAR, **wrong}, {**SOFTMAX, "causal": True}):
        got = attend_by("auto", q, k, v, **options)
        torch.testing.assert_close(got, define(q, k, v, **options), rtol=1e-5, atol=1e-5)


@needs_kernel
@pytest.mark.parametrize(
    ("processor", "length", "width", "causal", "path"),
    [
        ("AVX2", 256, 64, True, "sdpa"),
        ("AVX2", 32, 64, True, "cpu"),
        ("AVX2", 512, 8, True, "cpu"),
        ("AVX2", 128, 64, False, "sdpa"),
        ("Intel, AVX512", 1024, 64, True, "cpu"),
        ("Intel, AVX512", 2048, 64, True, "sdpa"),
        ("Intel, AVX512", 1024, 128, True, "sdpa"),
        ("Intel, AVX512", 2048, 16, True, "cpu"),
        ("Intel, AVX512", 128, 64, False, "sdpa"),
        ("AMD, AVX512", 256, 64, False, "cpu"),
        ("AMD, AVX512", 256, 128, True, "cpu"),
        ("AMD, AVX512", 256, 128, False, "sdpa"),
        ("AVX2, linear", 256, 16, True, "linear"),
        ("AVX2, linear", 255, 16, True, "cpu"),
        ("AVX2, linear", 128, 16, False, "linear"),
        ("AMD, linear", 1023, 16, True, "cpu"),
        ("AMD, linear", 1024, 16, True, "linear"),
        ("AMD, linear", 128, 16, False, "linear"),
    ],
)
def test_shorter_ways_are_used_where_they_are_faster(calls, monkeypatch, processor, length, width, causal, path):
    has_avx512 = processor.endswith("AVX512")
    monkeypatch.setattr(dispatch, "is_amd_with_avx512", lambda: processor.startswith("AMD"))
    monkeypatch.setattr(dispatch, "HAS_AVX512", has_avx512)
    monkeypatch.setattr(dispatch, "MIN_SDPA_LENGTH_TIMES_WIDTH", 8192 if has_avx512 else 16384)
    q, k, v = (draw(1, length, 1, width, seed=seed) for seed in range(3))
    options = {**(LINEAR if processor.endswith("linear") else SOFTMAX), "causal": causal}
    out = attend_by("auto", q, k, v, **options)
    assert calls == [path]
    torch.testing.assert_close(out, define(q, k, v, **options), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [SOFTMAX, LINEAR, HYLA], ids=["softmax", "linear", "hyla"])
@pytest.mark.parametrize("length", [16, 256])
def test_a_compiled_graph_is_whole(unchecked, options, length):
    torch._dynamo.reset()
    tensors = [draw(1, length, 2, 64, seed=seed) for seed in range(3)]
    compiled = torch.compile(
        lambda *qkv: attend(*qkv, causal=True, return_codes=False, **options)[0], backend="aot_eager", fullgraph=True
    )
    expected = differentiate(define, *tensors, causal=True, **options)
    for mine, theirs in zip(differentiate(compiled, *tensors), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


PROGRAM = """
import logging, torch
logging.basicConfig(level=logging.WARNING)
from recombine.attention.dispatch import attend
x = torch.randn(1, 3, 2, 2)
for _ in range(2):
    attend(x, x, x, normalisation="none", value_network="linear", return_codes=False)
"""


def test_without_a_compiler_the_definition_is_used_and_that_is_logged_once(tmp_path):
    environment = {**os.environ, "PATH": "", "RECOMBINE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.count("attention uses the reference path") == 1
    assert "compiler" in done.stderr


@pytest.mark.parametrize("name", ["reference", "nonsense"])
def test_the_environment_variable(name):
    environment = {**os.environ, "RECOMBINE_KERNEL": name}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    if name == "nonsense":
        assert "unknown kernel 'nonsense': expected one of auto, reference, cpu, triton, chunked" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


def attend_by_reference(q, k, v, **options):
    return attend_by("reference", q, k, v, **options)


@needs_kernel
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kernel", ["cpu", "chunked", "auto"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "shapes",
    [
        [(6, 5, 4, 3), (1, 7, 4, 3), (1, 7, 4, 2)],  # a context shared by the batch
        [(6, 5, 4, 3), (6, 7, 1, 3), (6, 7, 1, 2)],  # keys and values shared by the heads
        [(6, 5, 4, 3), (6, 7, 1, 3), (1, 7, 4, 2)],
        [(1, 5, 1, 3), (6, 7, 4, 3), (6, 7, 4, 2)],  # queries shared by everything
        [(1, 5, 1, 3), (1, 7, 1, 3), (6, 7, 4, 2)],
    ],
    ids=lambda shapes: "-".join("".join(map(str, shape)) for shape in shapes),
)
def test_every_kernel_broadcasts(kernel, choice, shapes):
    options = {"normalisation": choice[0], "value_network": choice[1]}
    qkv = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    wanted = differentiate(attend_by_reference, *(tensor.double() for tensor in qkv), **options)
    got = differentiate(partial(attend_by, kernel), *qkv, **options)
    assert [tensor.shape for tensor in got[1:]] == [tensor.shape for tensor in qkv]
    for ours, exact in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=2e-5 * max(1.0, exact.abs().max().item()))


WIDE_Q, WIDE_K = draw(2, 3, 4, 6), draw(2, 5, 4, 6)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("return_codes", [True, False])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": WIDE_Q[0]}, r"q has shape \(3, 4, 6\): expected 4 dimensions, \(b, q, h, d\)"),
        ({"v": V.long()}, "v has type torch.int64: expected a floating-point type"),
        ({"k": WIDE_K[..., :5]}, "q has heads of 6 features and k of 5: expected the same number"),
        ({"k": WIDE_K[..., :1]}, "q has heads of 6 features and k of 1: expected the same number"),
        ({"v": V[:, :4]}, "there are 5 keys and 4 values: expected as many values as keys"),
        ({"k": draw(3, 5, 4, 6)}, "q, k, v have batch sizes 2, 3, 2: expected the same, or 1 where they are shared"),
        ({"v": V[:, :, :3]}, "q, k, v have numbers of heads 4, 4, 3: expected the same"),
        ({"mask": torch.ones(2, 1, 1, 5).long()}, "mask has type torch.int64: expected torch.bool"),
        ({"mask": torch.ones(2, 1, 1, 5)}, "mask has type torch.float32: expected torch.bool"),
        ({"mask": torch.ones(2, 1, 1, 4).bool()}, r"mask has shape \(2, 1, 1, 4\): expected to broadcast to"),
        ({"bias": torch.ones(4, 3, 4)}, r"bias has shape \(4, 3, 4\): expected to broadcast to \(b, h, q, k\) = "),
        ({"bias": torch.ones(4, 3, 5).bool()}, "bias has type torch.bool: expected a floating-point type"),
        ({"k": WIDE_K.to("meta")}, "q is on cpu and k on meta: expected the same device"),
        ({"mask": torch.ones(2, 1, 1, 5, device="meta").bool()}, "q is on cpu and mask on meta: expected the same"),
        ({"normalisation": "rms"}, "unknown normalisation 'rms': expected one of none, softmax, rms_head"),
        ({"value_network": "deep"}, "unknown value network 'deep': expected one of linear, hyper_linear"),
        ({"value_network": "hyper_deep"}, "deep_weight is missing for hyper_deep"),
        ({"deep_weight": draw(4, 2, 2)}, "deep_weight is given for hyper_relu"),
        ({"value_network": "hyper_deep", "deep_weight": draw(4, 2, 3)}, r"deep_weight has shape \(4, 2, 3\): expected"),
        ({"mask": torch.ones(1, 2, 4, 3, 5).bool()}, r"mask has shape \(1, 2, 4, 3, 5\): expected to broadcast"),
        ({"dropout": Dropout(1.0, "pairs", torch.tensor(1))}, "dropout is 1.0: expected a number from 0 to below 1"),
    ],
)
def test_bad_arguments_are_named(return_codes, changes, message):
    arguments: dict[str, Any] = {"q": WIDE_Q, "k": WIDE_K, "v": V} | HYLA | changes
    with pytest.raises(InputError, match=message):
        attend(**arguments, return_codes=return_codes)


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 4), (5, 4), (2,)], r"bias has shape \(2,\): expected \(5,\), one per output"),
        ([(3, 4), (5, 4), (1,)], r"bias has shape \(1,\): expected \(5,\), one per output"),
        ([(3, 4), (5, 3), (5,)], r"x has shape \(3, 4\) and weight \(5, 3\): expected \(..., input\)"),
    ],
)
def test_a_dense_layer_whose_sizes_do_not_fit(unchecked, kernel, shapes, message):
    with use_kernel(kernel), pytest.raises(InputError, match=message):
        linear_gelu(*(draw(*shape) for shape in shapes))


@needs_kernel
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e10, 1e20])
@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice[0].startswith("softmax")])
def test_large_scores_have_the_softmax_of_the_definition(choice, scale):
    """Scores that no rounding touches: q is one-hot and d = 4, so that a score is half a feature of k."""
    options = {"normalisation": choice[0], "value_network": choice[1]}
    q = torch.nn.functional.one_hot(torch.arange(12).view(1, 6, 2) % 4, 4).float()
    k = draw(1, 100, 2, 4).round() * scale  # few values, so that many keys share the largest score
    v = draw(1, 100, 2, 3)
    exact = differentiate(define, q.double(), k.double(), v.double(), **options)
    plain = differentiate(define, q, k, v, **options)
    assert_agree(differentiate(fuse, q, k, v, **options), exact, plain)


def attend_some(choice, **options):
    def function(q, k, v):
        return attend(q, k, v, normalisation=choice[0], value_network=choice[1], return_codes=False, **options)[0]

    return function


DROPOUT = Dropout(0.3, "elements", torch.tensor(5))
TWICE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **{"-".join(choice): (attend_some(choice, causal=True, dropout=DROPOUT), [(2, 6, 4, 3)] * 3) for choice in CHOICES},
    "bias": (lambda q, bias: attend(q, 2 * q, q, bias=bias, **HYLA, return_codes=False)[0], [(2, 5, 4, 3), (4, 5, 5)]),
    "sdpa": (attend_some(("softmax", "linear"), causal=True), [(1, 256, 2, 64)] * 3),
    "linear": (attend_some(("none", "linear")), [(1, 128, 2, 16)] * 3),
    "dense": (dense, [(3, 7, 6), (4, 6), (4,)]),
    "gelu": (linear_gelu, [(3, 7, 6), (4, 6), (4,)]),
    "norm": (lambda x, gain, shift: add_norm(x, None, gain, shift, 1e-6), [(5, 7), (7,), (7,)]),
    "add and norm": (lambda x, gain, shift: add_norm(x, x.sin(), gain, shift, 1e-6)[1], [(5, 7), (7,), (7,)]),
}


@needs_kernel
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_are_those_of_the_reference(name, monkeypatch):
    """Of inputs with gaps that depend on one another, as those of a gradient penalty or a Hessian-vector product do."""
    monkeypatch.setattr(cpu, "dense_is_faster", lambda x, weight: cpu.find_onednn() is not None)
    monkeypatch.setattr(dispatch, "sdpa_is_faster", lambda q, k, causal: name == "sdpa")
    function, shapes = TWICE[name]
    weights = [draw(*shape, 2, seed=i) for i, shape in enumerate(shapes)]
    results = []
    for kernel in ("auto", "reference"):
        leaves = [weight.clone().requires_grad_() for weight in weights]
        inputs = [leaf[..., 0] + leaves[0].square().mean() for leaf in leaves]
        with use_kernel(kernel):
            out = function(*inputs)
            loss = sum(part.tanh().mean() for part in (out if isinstance(out, tuple) else (out,)))
            first = torch.autograd.grad(loss, leaves, create_graph=True)
            results.append([*first, *torch.autograd.grad(sum(part.square().sum() for part in first), leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item())


@needs_onednn
def test_onednn_is_used_where_it_is_faster(monkeypatch, unchecked):
    calls: list[Any] = []
    monkeypatch.setattr(cpu, "dense", record_calls(cpu.dense, calls))
    monkeypatch.setattr(cpu, "MIN_MULTIPLICATIONS", 5 * 6 * 4)
    monkeypatch.setattr(cpu, "is_amd_with_avx512", lambda: True)
    x, weight, bias = draw(5, 6), draw(4, 6), draw(4)
    expected = functional.linear(x, weight, bias)
    torch.testing.assert_close(dense(x, weight, bias), expected)
    layer = lecun_linear(6, 4)
    torch.testing.assert_close(layer(x), functional.linear(x, layer.weight, layer.bias))
    with pytest.raises(InputError, match=r"expected \(..., input\) and \(output, input\)"):
        dense(draw(20, 3), draw(4, 5))
    assert len(calls) == 2

    torch.testing.assert_close(dense(x[:4], weight, bias), expected[:4])  # too small
    wide = x.double(), weight.double(), bias.double()
    torch.testing.assert_close(dense(*wide), functional.linear(*wide))
    with torch.autocast("cpu", torch.bfloat16):
        assert dense(x, weight, bias).dtype == torch.bfloat16
    check_every_way(dense, (x, weight, bias), expected)
    monkeypatch.setattr(cpu, "is_amd_with_avx512", lambda: False)
    torch.testing.assert_close(dense(x, weight, bias), expected)
    assert len(calls) == 3, "once more by `check_every_way`, eagerly"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert cpu.find_onednn.__wrapped__() is None


def check_every_way(function, arguments, expected):
    """The first of some equal outputs is the same by kernel and definition, compiled and under `torch.func`."""

    def first(*arguments):
        out = function(*arguments)
        return out if isinstance(out, torch.Tensor) else out[1]

    torch._dynamo.reset()
    with use_kernel("reference"):
        torch.testing.assert_close(first(*arguments), expected)
    torch.testing.assert_close(first(*arguments), expected)
    torch.testing.assert_close(torch.func.vmap(lambda x: first(x, *arguments[1:]))(arguments[0]), expected)
    torch.testing.assert_close(torch.compile(first, backend="aot_eager", fullgraph=True)(*arguments), expected)


def test_gelu_is_one_function_by_every_way(monkeypatch, unchecked):
    arguments = draw(3, 7), draw(5, 7), draw(5)

    def define_gelu(x, weight, bias):
        return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")

    check_every_way(linear_gelu, arguments, define_gelu(*arguments))
    doubles = [argument.double() for argument in arguments]
    torch.testing.assert_close(linear_gelu(*doubles), define_gelu(*doubles))
    monkeypatch.setattr(cpu, "open_library", lambda source: "no C compiler")
    assert not cpu.supports_gelu(arguments[0], arguments[2])
    torch.testing.assert_close(linear_gelu(*arguments), define_gelu(*arguments))
    layer, x = build_feedforward("mlp", 6, 10), draw(2, 3, 6)
    torch.testing.assert_close(layer(x), layer.output(define_gelu(x, layer.input.weight, layer.input.bias)))


def test_norm_is_one_function_by_every_way(monkeypatch, unchecked):
    x, update, gain, shift = draw(3, 7), draw(3, 7, seed=1), draw(7), draw(7, seed=1)

    def add_some_norm(x, update=None, dtype=torch.float32):
        return add_norm(x.to(dtype), update, gain.to(dtype), shift.to(dtype), 1e-6)

    expected = functional.layer_norm(x, (7,), gain, shift, 1e-6)
    check_every_way(add_some_norm, (x,), expected)
    torch.testing.assert_close(add_some_norm(x - update, update)[1], expected)
    torch.testing.assert_close(add_some_norm(x, dtype=torch.float64)[1].float(), expected)
    monkeypatch.setattr(cpu, "open_library", lambda source: "no C compiler")
    assert not cpu.supports_norm(x, update, gain, shift)
    torch.testing.assert_close(add_some_norm(x)[1], expected)
    layer = ResidualNorm(7)
    total, normed = layer(x, update)
    torch.testing.assert_close((total, normed), (x + update, torch.nn.LayerNorm(7)(x + update)))
    assert set(layer.state_dict()) == {"weight", "bias"}
    with pytest.raises(InputError, match=r"the update has shape \(1, 7\): expected the residual's, \(3, 7\)"):
        add_norm(x, update[:1], gain, shift, 1e-6)
    with pytest.raises(InputError, match=r"weight and bias have shapes \(7,\) and \(2,\): expected \(7,\)"):
        add_norm(x, None, gain, shift[:2], 1e-6)
