"""The fused layers around attention agree with their definition, and step aside where they do not apply."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from recombine.attention.cpu import kernels as cpu
from recombine.attention.dispatch import use_kernel
from recombine.foundation import native
from recombine.models import transformer
from recombine.models.transformer import Block, TransformerConfig

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=f"no kernel: {cpu.why_unavailable()}")

EPSILON = 1e-6
SIZES = [(2, 7, 32, 16, 48), (1, 1, 16, 16, 16), (3, 100, 16, 32, 80), (4, 300, 128, 48, 64)]


def draw(batch, tokens, width, inner, mlp):
    torch.manual_seed(0)
    shapes = [(width,), (width,), (width, inner), (width,), (mlp, width), (mlp,), (width, mlp), (width,)]
    drawn = [torch.randn(batch, tokens, width), torch.randn(batch, tokens, inner), *(torch.randn(s) for s in shapes)]
    return [(tensor / tensor.shape[-1] ** 0.5 if tensor.dim() == 2 else tensor).requires_grad_() for tensor in drawn]


def define_feed_forward(x, heads, gain, shift, weight, bias, *layers):
    total = x + functional.linear(heads, weight, bias)
    normed = functional.layer_norm(total, gain.shape, gain, shift, EPSILON)
    active = functional.gelu(functional.linear(normed, *layers[:2]), approximate="tanh")
    return total + functional.linear(active, *layers[2:])


def run_feed_forward(x, heads, *parameters):
    return cpu.feed_forward(x, heads, EPSILON, *parameters)


def define_norm_dense(x, gain, shift, weight, bias):
    return torch.cat(
        [x, functional.linear(functional.layer_norm(x, gain.shape, gain, shift, EPSILON), weight, bias)], -1
    )


def run_norm_dense(x, gain, shift, weight, bias):
    return torch.cat(cpu.norm_dense(x, gain, shift, EPSILON, weight, bias), -1)


def pose(name, sizes):
    """Function, definition and inputs."""
    inputs = draw(*sizes)
    if name == "feed_forward":
        return run_feed_forward, define_feed_forward, inputs
    return run_norm_dense, define_norm_dense, [inputs[0], *inputs[2:4], *inputs[6:8]]


def differentiate(function, inputs):
    out = function(*inputs)
    torch.manual_seed(1)
    return out, *torch.autograd.grad(out, inputs, torch.randn(out.shape).to(out.dtype))


both = pytest.mark.parametrize("name", ["feed_forward", "norm_dense"])


def compare(name, sizes):
    run, define, inputs = pose(name, sizes)
    if name == "norm_dense":  # weight and bias of any number of outputs
        inputs[3], inputs[4] = (tensor.detach().clone().requires_grad_() for tensor in (inputs[3], inputs[4]))
    expected = differentiate(define, [tensor.detach().double().requires_grad_() for tensor in inputs])
    for found, wanted in zip(differentiate(run, inputs), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-6 * wanted.abs().max().item())


@both
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(name, sizes):
    compare(name, sizes)


@both
@pytest.mark.parametrize("flags", [("-mno-avx512f",), ("-DRECOMBINE_NARROW",)], ids=["avx2", "four lanes"])
def test_other_vectors(name, flags, monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, *flags))
    cpu.open_library.cache_clear()
    try:
        if isinstance(reason := cpu.open_library("block.c"), str):
            pytest.skip(reason)
        compare(name, SIZES[2])
    finally:
        cpu.open_library.cache_clear()


@both
def test_bits_do_not_depend_on_threads(name):
    run, _, inputs = pose(name, (5, 700, 32, 16, 48))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(differentiate(run, inputs))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@both
def test_second_derivatives(name):
    run, define, inputs = pose(name, (1, 5, 16, 16, 16))

    def differentiate_twice(function):
        grads = torch.autograd.grad(function(*inputs).sin().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), inputs)

    for found, expected in zip(differentiate_twice(run), differentiate_twice(define), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@both
def test_nan_stays_in_its_row(name):
    run, _, inputs = pose(name, (1, 40, 32, 16, 48))
    with torch.no_grad():
        inputs[0][0, 3, 5] = torch.nan
        broken = run(*inputs).isnan().any(dim=-1)[0]
    assert broken.nonzero().flatten().tolist() == [3]


def build(feedforward="mlp", **sizes) -> Block:
    torch.manual_seed(0)
    config = TransformerConfig(
        **{"num_layers": 1, "embedding_dim": 32, "kqv_dim": 16, "mlp_dim": 48, "num_heads": 4} | sizes
    )
    return TransformerConfig.build_block(config, sequence_length=9)


@pytest.fixture
def count_fused(monkeypatch):
    """A list that grows with each fused feed-forward network."""
    calls: list[int] = []

    def count(*inputs):
        calls.append(1)
        return cpu.feed_forward(*inputs)

    monkeypatch.setattr(transformer, "feed_forward", count)
    return calls


@pytest.mark.parametrize("num_queries", [None, 2])
def test_a_block_is_the_same_block(count_fused, num_queries):
    layer, x = build(attention="softmax"), torch.randn(3, 9, 32, requires_grad=True)
    found = {}
    for kernel in ("reference", "auto"):
        with use_kernel(kernel):
            out = layer(x, num_queries=num_queries)[0]
        found[kernel] = (out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()]))
    assert len(count_fused) == 1
    for plain, fused in zip(*found.values(), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5 * plain.abs().max().item())


def quantise(layer):
    layer.feedforward.output = nn.Linear(48, 32)


def watch(layer):
    layer.feedforward.output.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0,))


def parametrise(layer):
    nn.utils.parametrize.register_parametrization(layer.attention.output, "weight", nn.Identity())


@pytest.mark.parametrize("change", [quantise, watch, parametrise, nn.Module.double])
def test_other_layers_hooks_and_types_are_not_passed_by(count_fused, change):
    layer, x = build(), torch.randn(3, 9, 32)
    fused = layer(x)[0]
    assert len(count_fused) == 1
    change(layer)
    out = layer(x.to(layer.attention.qkv_weight.dtype))[0]
    assert len(count_fused) == 1
    assert torch.allclose(out.float(), fused, atol=1e-4) == (change in (parametrise, nn.Module.double))


def test_what_it_does_not_support():
    x, weight = torch.randn(2, 3, 16), torch.randn(32, 16)
    assert cpu.supports_layers(x, weight, weight[0])
    assert not cpu.supports_layers(x, weight, None)
    assert not cpu.supports_layers(x.double(), weight)
    assert not cpu.supports_layers(x, weight[:20])
    assert not cpu.supports_layers(x, weight.t())
    assert not cpu.supports_layers(x.to("meta"), weight)
    assert not cpu.supports_layers(x, torch.randn(1024, 512))
    with torch.autocast("cpu", torch.bfloat16):
        assert not cpu.supports_layers(x, weight)
