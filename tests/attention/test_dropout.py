"""Dropout of codes: the same bits everywhere, the same numbers in every kernel, and a key for every step and layer."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attention_cases import CHOICES, MASKS, by_definition, by_kernel, check, draw_case, needs_kernel
from recombine import convert
from recombine.attention import chunked
from recombine.attention import definition as reference
from recombine.attention.cpu import attention as cpu
from recombine.attention.dispatch import attend
from recombine.attention.dropout import CodeDropout, Dropout, DropoutKeys, Rows, drop, find_kept
from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import Attention, attend_isolated, isolation_mask
from recombine.foundation.errors import InputError
from recombine.random import Stream, hash_key, mix

FORMS = ["pairs", "elements"]
HYLA: dict[str, Any] = {"normalisation": "rms_head", "value_network": "hyper_relu"}


def draw_dropout(form="pairs", rate=0.3, key=-123456789):
    return Dropout(rate, form, torch.tensor(key))


def count_on_paper(key, counter):
    """SplitMix64 in Python's whole numbers."""
    word = (counter * 0x9E3779B97F4A7C15 + key) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def test_bits_are_those_of_the_streams_and_of_the_algorithm():
    key = hash_key("a", 1, 0)
    bits = mix(torch.arange(12), torch.tensor(key))
    assert torch.equal(bits.view(4, 3), Stream("a", 1, rows=range(4)).bits(3))
    assert bits[7].item() % 2**64 == count_on_paper(key % 2**64, 7)


@pytest.mark.parametrize("form", FORMS)
def test_which_codes_are_kept_by_hand(form):
    shape = (2, 3, 4, 6)
    kept = find_kept(draw_dropout(form), torch.Size(shape), torch.device("cpu")).expand(shape)
    for i, j, m, n in torch.cartesian_prod(*(torch.arange(size) for size in shape)).tolist():
        row = m if form == "pairs" else (i * 3 + j) * 4 + m
        number = count_on_paper(-123456789 % 2**64, row * 2 + n // 4) >> 16 * (n % 4) & 0xFFFF
        assert kept[i, j, m, n].item() == (number >= round(0.3 * 2**16))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_fraction_dropped_and_the_scale(form, rate):
    codes = drop(torch.ones(4, 8, 64, 65), draw_dropout(form, rate))
    number = 64 * 65 * (1 if form == "pairs" else 32)
    assert (codes == 0).double().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / number) ** 0.5)
    assert codes[codes != 0].unique().item() == pytest.approx(1 / (1 - rate))
    assert (form == "pairs") == torch.equal(codes[0, 0], codes[2, 3])


@needs_kernel
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    choice=st.sampled_from(CHOICES),
    form=st.sampled_from(FORMS),
    b=st.integers(1, 4),
    q=st.integers(1, 40),
    k=st.integers(1, 40),
    h=st.integers(2, 17),  # with one head the gradient of rms_head is nothing but rounding
    d=st.integers(1, 9),
    bias=st.sampled_from([None, "shared", "batch"]),
    mask=st.sampled_from([None, *MASKS]),
    causal=st.booleans(),
)
def test_the_kernel_drops_what_the_definition_drops(seed, choice, form, causal, d, **sizes):
    dropout = draw_dropout(form, key=seed * 987654321987)
    check(draw_case(seed, d=d, e=d, **sizes), choice, causal=causal, dropout=dropout)


@needs_kernel
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "sizes",
    [
        {"b": 17, "q": 20, "k": 36, "h": 16, "d": 4, "e": 4, "bias": "shared", "packed": True},  # SRAVEN
        {"b": 17, "q": 9, "k": 32, "h": 8, "d": 2, "e": 2, "bias": "shared"},  # fuzzy logic
        {"b": 2, "q": 30, "k": 80, "h": 8, "d": 64, "e": 64, "mask": "everything"},  # several blocks of keys
        {"b": 3, "q": 90, "k": 300, "h": 5, "d": 6, "e": 5, "bias": "shared"},  # threads share batch elements
    ],
    ids=["sraven", "fuzzy_logic", "language", "shared"],
)
def test_special_paths(choice, form, sizes):
    check(draw_case(3, **sizes), choice, causal=sizes["b"] == 3, dropout=draw_dropout(form))


@needs_kernel
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", [("rms_head", "hyper_relu"), ("softmax", "linear"), ("softmax", "hyper_relu")])
@pytest.mark.parametrize("sizes", [{"b": 33, "q": 36, "k": 36, "h": 16, "d": 4, "e": 4}, {"b": 3, "q": 200, "k": 300}])
def test_bits_do_not_depend_on_threads(choice, form, sizes):
    case = draw_case(7, bias="shared", **sizes)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(by_kernel(case, choice, dropout=draw_dropout(form)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_chunks_drop_what_the_definition_drops(form, causal):
    q, k, v = (tensor.float() for tensor in draw_case(1, q=10).qkv)
    options = {**HYLA, "causal": causal, "dropout": draw_dropout(form)}
    got = chunked.attend(q, k, v, chunk_size=3, **options)
    torch.testing.assert_close(got, reference.attend(q, k, v, **options)[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", [("softmax", "linear"), ("none", "linear"), ("rms_head", "hyper_relu")])
def test_isolated_queries_drop_pairs_of_the_whole_layer(choice, form):
    case = draw_case(2, q=9, k=9)
    q, k, v = (tensor.float() for tensor in case.qkv)
    options = {"normalisation": choice[0], "value_network": choice[1], "dropout": draw_dropout(form)}
    got, _ = attend_isolated(q, k, v, num_isolated=4, return_codes=False, **options)
    torch.testing.assert_close(got, reference.attend(q, k, v, mask=isolation_mask(9, 9, 4), **options)[0])


@needs_kernel
def test_bfloat16():
    case = draw_case(1, b=3, q=36, k=36, h=16, d=4, e=4)
    case.qkv = [tensor.bfloat16() for tensor in case.qkv]
    case.grad_out = case.grad_out.bfloat16()
    for choice in CHOICES:
        got = by_kernel(case, choice, dtype=torch.bfloat16, dropout=draw_dropout())
        for ours, exact in zip(got, by_definition(case, choice, dropout=draw_dropout()), strict=True):
            assert (ours.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_drops_in_training_only_and_anew_in_each_call(form):
    layer = Attention(8, num_heads=2, kqv_dim=8, dropout=0.5, dropout_form=form)
    x = torch.randn(2, 6, 8)
    torch.manual_seed(1)
    first, second = layer(x, return_codes=False)[0], layer(x, return_codes=False)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    again, codes = layer(x)
    torch.testing.assert_close(again, first)
    assert 0 < (codes == 0).sum() < codes.numel()
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert (layer(x)[1] != 0).all()


@needs_kernel
@pytest.mark.parametrize("attention", ["softmax", "hyla"])
def test_torch_layers_keep_the_fused_path_in_training(attention, monkeypatch):
    layer = HypernetworkAttention(8, 2, dropout=0.4, attention=attention, batch_first=True)
    x = torch.randn(2, 6, 8)
    with DropoutKeys(layer).at(0, 0):
        expected, codes = layer(x, x, x)
        monkeypatch.setattr(reference, "attend", None)
        got, _ = layer(x, x, x, need_weights=False)
    torch.testing.assert_close(got, expected)
    assert (codes == 0).any()


@pytest.mark.usefixtures("unchecked")
def test_the_rate_of_torch_layers_can_be_changed_and_survives_conversion():
    torch_layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    converted = convert(torch_layer, attention="hyla").self_attn
    assert converted.dropout == 0.3
    converted.dropout = 0.0
    assert converted.code_dropout() is None
    assert not any("code_dropout" in name for name in converted.state_dict())
    with pytest.raises(InputError, match=r"dropout is 1\.0: expected a number from 0 to below 1"):
        converted.dropout = 1.0
    with pytest.raises(InputError, match="unknown form of dropout 'heads': expected one of pairs, elements"):
        CodeDropout(0.5, "heads")


def test_a_rate_that_is_no_number(unchecked):
    with pytest.raises(InputError, match="dropout is 'x': expected a number from 0 to below 1"):
        HypernetworkAttention(8, 2, dropout="x")


def test_keys_differ_between_seeds_steps_and_layers_and_nothing_else():
    model = nn.ModuleList(Attention(8, num_heads=2, kqv_dim=8, dropout=0.5) for _ in range(2))
    keys = DropoutKeys(model)

    def read(seed, step):
        with keys.at(seed, step):
            return [layer.dropout().key.item() for layer in model]

    found = [*read(0, 0), *read(0, 1), *read(1, 0)]
    assert len(set(found)) == 6
    assert read(0, 0) == found[:2]


@needs_kernel
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("attention", ["softmax", "hyla", "hyla_deep"])
def test_one_graph_for_all_steps(attention):
    torch._dynamo.reset()
    layer = Attention(8, num_heads=2, kqv_dim=8, attention=attention, dropout=0.5)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend=backend)
    keys, x = DropoutKeys(layer), torch.randn(2, 6, 8)
    for step in range(4):
        with keys.at(0, step):
            torch.testing.assert_close(compiled(x, return_codes=False)[0], layer(x, return_codes=False)[0])
    assert len(graphs) == 1
    assert not torch.equal(compiled(x, return_codes=False)[0], compiled(x, return_codes=False)[0])


def test_a_forced_kernel_that_has_no_dropout_gives_way():
    q, k, v = (tensor.float() for tensor in draw_case(1).qkv)
    options = {**HYLA, "dropout": draw_dropout()}
    got = attend(q, k, v, return_codes=False, kernel="triton", **options)[0]
    torch.testing.assert_close(got, reference.attend(q, k, v, **options)[0])
    assert not cpu.supports(q, k, v, **HYLA, dropout=Dropout(0.1, "pairs", torch.tensor(1), Rows(1, 9, 9)))
