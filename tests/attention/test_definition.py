"""The definition of attention against loops written separately, and its invariants; the same in chunks of queries."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attention_cases import define
from recombine.attention import definition
from recombine.attention.definition import AttentionOptions
from recombine.attention.dispatch import attend
from recombine.attention.layer import ATTENTIONS

B, Q, K, H, D, E = 2, 3, 4, 3, 2, 5


def draw(seed=0, dtype=torch.float64, **shapes):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}


def draw_inputs(name, dtype=torch.float64):
    """q, k, v, a bias per head, a mask with one query that sees nothing, and W where the attention has one."""
    inputs = draw(q=(B, Q, H, D), k=(B, K, H, D), v=(B, K, H, E), bias=(H, Q, K), deep_weight=(H, E, E), dtype=dtype)
    inputs["mask"] = torch.rand((B, 1, Q, K), generator=torch.Generator().manual_seed(1)) < 0.7
    inputs["mask"][0, :, 1] = False
    normalisation, value_network = ATTENTIONS[name]
    if value_network != "hyper_deep":
        del inputs["deep_weight"]
    return inputs | {"normalisation": normalisation, "value_network": value_network}


def loop_codes(q, k, normalisation, bias, mask):
    """The latent codes of one sequence as nested lists code[h][query][key] of scalars."""
    seen = [[[bool(mask[h, i, j]) for j in range(len(k))] for i in range(len(q))] for h in range(H)]
    code = [[[torch.zeros(()).to(q) for _ in range(len(k))] for _ in range(len(q))] for _ in range(H)]
    for h in range(H):
        for i in range(len(q)):
            allowed = [j for j in range(len(k)) if seen[h][i][j]]
            for j in allowed:
                code[h][i][j] = sum(q[i, h, d] * k[j, h, d] for d in range(D)) / D**0.5 + bias[h, i, j]
            if "softmax" in normalisation:
                total = sum(torch.exp(code[h][i][j]) for j in allowed)
                for j in allowed:
                    code[h][i][j] = torch.exp(code[h][i][j]) / total
    if "rms_head" in normalisation:
        for i in range(len(q)):
            for j in range(len(k)):
                root = (sum(code[h][i][j] ** 2 for h in range(H)) / H + 1e-6) ** 0.5
                for h in range(H):
                    code[h][i][j] = code[h][i][j] / root
    return code


def loop_value(code, v, value_network, deep_weight):
    """What one pair adds to each head, from its code (a list over heads) and the values of its key (h, e)."""
    if value_network == "linear":
        return [code[h] * v[h] for h in range(H)]
    if value_network == "nonlinear_value":
        return [code[h] * v[h].clamp(min=0) for h in range(H)]
    hidden = sum(code[h] * v[h] for h in range(H))
    if value_network != "hyper_linear":
        hidden = hidden.clamp(min=0)
    if value_network == "hyper_deep":
        hidden = sum(code[h] * (deep_weight[h] @ hidden) for h in range(H)).clamp(min=0)
    return [code[h] * hidden for h in range(H)]


def loop_attend(q, k, v, *, normalisation, value_network, bias, mask, deep_weight=None):
    bias, mask = bias.expand(B, H, Q, K), mask.expand(B, H, Q, K)
    outputs, codes = [], []
    for b in range(B):
        code = loop_codes(q[b], k[b], normalisation, bias[b], mask[b])
        for i in range(Q):
            pair_codes = [[code[h][i][j] for h in range(H)] for j in range(K)]
            pairs = [loop_value(pair_codes[j], v[b, j], value_network, deep_weight) for j in range(K)]
            outputs += [sum(pair[h] for pair in pairs) for h in range(H)]
        codes += [code[h][i][j] for h in range(H) for i in range(Q) for j in range(K)]
    return torch.stack(outputs).view(B, Q, H, E), torch.stack(codes).view(B, H, Q, K)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_row_of_table_a1_equals_the_loops_in_values_and_gradients(name):
    inputs = draw_inputs(name)
    leaves = [inputs[leaf].requires_grad_() for leaf in ("q", "k", "v", "bias", "deep_weight") if leaf in inputs]
    weights = draw(seed=2, out=(B, Q, H, E), codes=(B, H, Q, K))
    results = []
    for function in (attend, loop_attend):
        out, codes = function(**inputs)
        loss = (out * weights["out"]).sum() + (codes * weights["codes"]).sum()
        results.append([out, codes, *torch.autograd.grad(loss, leaves)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_query_that_sees_no_key_gives_zeros_and_finite_gradients(name):
    inputs = draw_inputs(name)
    leaves = [inputs[leaf].requires_grad_() for leaf in ("q", "k", "v", "bias")]
    out, codes = attend(**inputs)
    assert torch.equal(out[0, 1], torch.zeros(H, E, dtype=out.dtype))
    assert torch.equal(codes[0, :, 1], torch.zeros(H, K, dtype=out.dtype))
    with torch.autograd.set_detect_anomaly(True):  # not even on the way to the leaves may there be a NaN
        gradients = torch.autograd.grad(out.square().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert torch.equal(gradients[0][0, 1], torch.zeros(H, D, dtype=out.dtype))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_masked_keys_have_no_influence(name):
    """Zero gradient, and exactly the same output whatever a masked key holds."""
    inputs = draw_inputs(name)
    inputs["mask"] = torch.tensor([True, True, False, True])
    k, v = inputs["k"].requires_grad_(), inputs["v"].requires_grad_()
    out, codes = attend(**inputs)
    for gradient in torch.autograd.grad(out.sum(), [k, v]):
        assert torch.equal(gradient[:, 2], torch.zeros_like(gradient[:, 2]))
        assert gradient[:, 0].abs().max() > 0
    assert torch.equal(codes[..., 2], torch.zeros_like(codes[..., 2]))
    changed = {**inputs, "k": k.detach().clone(), "v": v.detach().clone()}
    changed["k"][:, 2], changed["v"][:, 2] = 1e3, -1e3
    assert torch.equal(attend(**changed)[0], out)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_permuting_heads_permutes_the_output_and_permuting_keys_changes_nothing(name):
    inputs = draw_inputs(name)
    out, codes = attend(**inputs)
    heads, keys = torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    permuted = {part: inputs[part][:, :, heads] for part in "qkv"} | {"bias": inputs["bias"][heads]}
    if "deep_weight" in inputs:
        permuted["deep_weight"] = inputs["deep_weight"][heads]
    torch.testing.assert_close(attend(**inputs | permuted), (out[:, :, heads], codes[:, heads]))
    permuted = {part: inputs[part][:, keys] for part in "kv"}
    permuted |= {part: inputs[part][..., keys] for part in ("bias", "mask")}
    torch.testing.assert_close(attend(**inputs | permuted)[0], out)


@pytest.mark.parametrize("name", ["softmax", "linear", "hyla"])
def test_causal_queries_are_aligned_at_the_end(name):
    inputs = draw_inputs(name)
    earlier = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    causal = attend(**inputs | {"causal": True})
    masked = attend(**inputs | {"mask": inputs["mask"] & earlier})
    assert torch.equal(causal[0], masked[0])
    assert torch.equal(causal[1], masked[1])
    assert torch.equal(attend(**inputs | {"mask": None, "causal": True})[1] != 0, earlier.expand(B, H, Q, K))


def test_code_map_acts_before_the_codes_are_used():
    inputs = draw_inputs("linear")

    def silence_head_one(codes):
        return codes * torch.tensor([1.0, 0.0, 1.0], dtype=codes.dtype)[:, None, None]

    plain, codes = attend(**inputs)
    out, silenced_codes = attend(**inputs, code_map=silence_head_one)
    assert torch.equal(silenced_codes, silence_head_one(codes))
    assert torch.equal(out[:, :, 1], torch.zeros_like(out[:, :, 1]))
    torch.testing.assert_close(out[:, :, 0], plain[:, :, 0])


def test_scores_stay_in_float32_under_autocast_and_in_bf16():
    inputs = {**draw_inputs("hyla", dtype=torch.float32), "bias": None}
    expected_out, expected_codes = attend(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, codes = attend(**inputs)
    assert codes.dtype == torch.float32
    assert torch.equal(codes, expected_codes)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected_out, rtol=0.1, atol=0.1)
    half = {**inputs, **{part: inputs[part].bfloat16() for part in "qkv"}}
    out, codes = attend(**half)
    assert (out.dtype, codes.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(codes, attend(**half | {part: half[part].float() for part in "qkv"})[1])


PAIRS = list(itertools.product(definition.NORMALISATIONS, definition.VALUE_NETWORKS))


def draw_one(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def attend_in_chunks(q, k, v, chunk_size=None, **options):
    return definition.attend_in_chunks(q, k, v, AttentionOptions(**options), chunk_size)


def evaluate(attend, leaves, **options):
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    out = attend(**leaves, **options)
    return out, *torch.autograd.grad(out, list(leaves.values()), draw_one(*out.shape, seed=1))


def check_chunks(normalisation, value_network, causal, chunk_size):
    leaves = {
        "q": draw_one(2, 7, 3, 2),
        "k": draw_one(2, 9, 3, 2),
        "v": draw_one(2, 9, 3, 4),
        "bias": draw_one(3, 7, 9),
    }
    if value_network == "hyper_deep":
        leaves["deep_weight"] = draw_one(3, 4, 4)
    options = {
        "normalisation": normalisation,
        "value_network": value_network,
        "causal": causal,
        "mask": draw_one(2, 1, 7, 9) > -1,
    }
    ours = evaluate(attend_in_chunks, leaves, chunk_size=chunk_size, **options)
    for got, want in zip(ours, evaluate(define, leaves, **options), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("normalisation", "value_network"), PAIRS)
@pytest.mark.parametrize("causal", [False, True])
def test_chunks_are_the_definition(normalisation, value_network, causal):
    check_chunks(normalisation, value_network, causal, chunk_size=3)


class LargestTensor(TorchDispatchMode):
    """The most elements any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("value_network", ["linear", "hyper_relu"])
def test_chunks_have_no_large_tensor_in_either_pass(monkeypatch, value_network):
    monkeypatch.setattr(definition, "MAX_CHUNK_ELEMENTS", 1 << 13)
    leaves = {name: draw_one(1, 128, 2, 8) for name in "qkv"}
    options = {"normalisation": "rms_head", "value_network": value_network, "causal": True}
    with LargestTensor() as largest:
        evaluate(attend_in_chunks, leaves, **options)
    assert largest.elements <= 1 << 13
    with LargestTensor() as largest:
        evaluate(define, leaves, **options)
    assert largest.elements >= 128 * 128 * 2
