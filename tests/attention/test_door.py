"""What reaches a kernel is checked first: every kernel broadcasts the same and refuses the same, without a type checker."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import recombine
from attention_cases import CHOICES, assert_agree, needs_kernel
from recombine.attention import chunked
from recombine.attention import definition as reference
from recombine.attention.cpu import attention as cpu
from recombine.attention.dispatch import attend, linear_gelu, use_kernel
from recombine.attention.dropout import Dropout
from recombine.foundation.errors import InputError

pytestmark = [needs_kernel, pytest.mark.usefixtures("unchecked")]

KERNELS = {
    "reference": lambda *qkv, **options: reference.attend(*qkv, **options)[0],
    "cpu": cpu.attend,
    "chunked": lambda *qkv, **options: chunked.attend(*qkv, chunk_size=2, **options),
    "auto": lambda *qkv, **options: attend(*qkv, return_codes=False, **options)[0],
}
SOFTMAX = {"normalisation": "softmax", "value_network": "linear"}
HYLA = {"normalisation": "rms_head", "value_network": "hyper_relu"}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def differentiate(function, *tensors, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, **options)
    return out, *torch.autograd.grad(out, leaves, draw(*out.shape).to(out.dtype))


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
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
def test_what_the_definition_broadcasts_every_kernel_broadcasts(kernel, choice, shapes):
    options = {"normalisation": choice[0], "value_network": choice[1]}
    qkv = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    wanted = differentiate(KERNELS["reference"], *(tensor.double() for tensor in qkv), **options)
    got = differentiate(KERNELS[kernel], *qkv, **options)
    assert [tensor.shape for tensor in got[1:]] == [tensor.shape for tensor in qkv]
    for ours, exact in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=2e-5 * max(1.0, exact.abs().max().item()))


def test_a_context_shared_by_the_batch_reaches_the_layer():
    layer = recombine.Attention(32, num_heads=4, kqv_dim=32, attention="softmax")
    x, context = draw(8, 5, 32).requires_grad_(), draw(1, 7, 32).requires_grad_()
    results = []
    for return_codes in (False, True):
        out, _ = layer(x, context, return_codes=return_codes)
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, context, *layer.parameters()])))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


Q, K, V = draw(2, 3, 4, 6), draw(2, 5, 4, 6), draw(2, 5, 4, 2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("choice", [SOFTMAX, HYLA], ids=["softmax", "hyla"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": Q[0]}, r"q has shape \(3, 4, 6\): expected 4 dimensions, \(b, q, h, d\)"),
        ({"v": V.long()}, "v has type torch.int64: expected a floating-point type"),
        ({"k": K[..., :5]}, "q has heads of 6 features and k of 5: expected the same number"),
        ({"k": K[..., :1]}, "q has heads of 6 features and k of 1: expected the same number"),
        ({"v": V[:, :4]}, "there are 5 keys and 4 values: expected as many values as keys"),
        ({"k": draw(3, 5, 4, 6)}, "q, k, v have batch sizes 2, 3, 2: expected the same, or 1 where they are shared"),
        ({"v": V[:, :, :3]}, "q, k, v have numbers of heads 4, 4, 3: expected the same"),
        ({"mask": torch.ones(2, 1, 1, 5).long()}, "mask has type torch.int64: expected torch.bool"),
        ({"mask": torch.ones(2, 1, 1, 5)}, "mask has type torch.float32: expected torch.bool"),
        ({"mask": torch.ones(2, 1, 1, 4).bool()}, r"mask has shape \(2, 1, 1, 4\): expected to broadcast to"),
        ({"bias": torch.ones(4, 3, 4)}, r"bias has shape \(4, 3, 4\): expected to broadcast to \(b, h, q, k\) = "),
        ({"bias": torch.ones(4, 3, 5).bool()}, "bias has type torch.bool: expected a floating-point type"),
        ({"k": K.to("meta")}, "q is on cpu and k on meta: expected the same device"),
        ({"mask": torch.ones(2, 1, 1, 5, device="meta").bool()}, "q is on cpu and mask on meta: expected the same"),
        ({"dropout": Dropout(1.0, "pairs", torch.tensor(1))}, "dropout is 1.0: expected a number from 0 to below 1"),
    ],
)
def test_what_the_definition_refuses_every_kernel_refuses(kernel, choice, changes, message):
    arguments: dict[str, Any] = {"q": Q, "k": K, "v": V} | changes
    qkv = [arguments.pop(name) for name in "qkv"]
    with pytest.raises(InputError, match=message):
        KERNELS[kernel](qkv[0], qkv[1], qkv[2], **choice, **arguments)


def test_a_deep_weight_of_another_size():
    with pytest.raises(InputError, match=r"deep_weight has shape \(4, 2, 3\): expected \(h, e, e\) = \(4, 2, 2\)"):
        attend(Q, K, V, normalisation="rms_head", value_network="hyper_deep", deep_weight=draw(4, 2, 3))


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 4), (5, 4), (2,)], r"bias has shape \(2,\): expected \(5,\), one per output"),
        ([(3, 4), (5, 4), (1,)], r"bias has shape \(1,\): expected \(5,\), one per output"),
        ([(3, 4), (5, 3), (5,)], r"x has shape \(3, 4\) and weight \(5, 3\): expected \(..., input\)"),
    ],
)
def test_a_dense_layer_whose_sizes_do_not_fit(kernel, shapes, message):
    with use_kernel(kernel), pytest.raises(InputError, match=message):
        linear_gelu(*(draw(*shape) for shape in shapes))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e10, 1e20])
@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice[0].startswith("softmax")])
def test_large_scores_have_the_softmax_of_the_definition(choice, scale):
    """Scores that no rounding touches: q is one-hot and d = 4, so that a score is half a feature of k."""
    options = {"normalisation": choice[0], "value_network": choice[1]}
    q = torch.nn.functional.one_hot(torch.arange(12).view(1, 6, 2) % 4, 4).float()
    k = draw(1, 100, 2, 4).round() * scale  # few values, so that many keys share the largest score
    v = draw(1, 100, 2, 3)
    exact = differentiate(KERNELS["reference"], q.double(), k.double(), v.double(), **options)
    plain = differentiate(KERNELS["reference"], q, k, v, **options)
    assert_agree(differentiate(cpu.attend, q, k, v, **options), exact, plain)


PROGRAM = """
import torch, recombine
layer = recombine.Attention(32, num_heads=4, kqv_dim=32, attention="softmax")
x, context = torch.randn(8, 5, 32), torch.randn(1, 7, 32)
out, _ = layer(x, context, return_codes=False)
out.sum().backward()
expected, _ = layer(x, context)
print(torch.allclose(out, expected, atol=1e-5))
try:
    layer(x, context, mask=torch.ones(8, 1, 1, 7), return_codes=False)
except recombine.InputError as error:
    print(error)
"""


def test_as_a_user_runs_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    expected = ["True", "mask has type torch.float32: expected torch.bool, True where a query may attend"]
    assert done.stdout.splitlines() == expected
