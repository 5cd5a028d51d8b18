"""HypernetworkAttention against torch's own layer, in torch's containers, and the conversion of whole models."""

import itertools
import warnings

import pytest
import torch
from torch import nn

from recombine.attention.hyla import HypernetworkAttention, convert
from recombine.attention.layer import ATTENTIONS
from recombine.foundation.errors import InputError

E, H, N, L, S = 8, 4, 2, 3, 5


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def randomise(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module.double()


def build_pair(attention="softmax", **options):
    """Torch's layer, and ours with its weights."""
    theirs = randomise(nn.MultiheadAttention(E, H, **options))
    ours = HypernetworkAttention(E, H, attention=attention, **options).double()
    ours.load_state_dict(theirs.state_dict(), strict=attention != "hyla_deep")
    return theirs, ours


def draw_masks():
    """Named masks for attn_mask and key_padding_mask; every query keeps at least one key."""
    hidden = torch.rand(L, S, generator=torch.Generator().manual_seed(1)) < 0.4
    hidden[:, 1] = False
    per_head = (torch.rand(N * H, L, S, generator=torch.Generator().manual_seed(2)) < 0.4) & (torch.arange(S) != 1)
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    finite = draw(L, S, seed=3).masked_fill(hidden, -torch.inf)
    return {
        "none": {},
        "bool": {"attn_mask": hidden},
        "bool per head": {"attn_mask": per_head},
        "float": {"attn_mask": finite},
        "float per head": {"attn_mask": draw(N * H, L, S, seed=4).masked_fill(per_head, -torch.inf)},
        "padding": {"key_padding_mask": padding},
        "bool and padding": {"attn_mask": hidden, "key_padding_mask": padding},
        "float and float padding": {
            "attn_mask": finite,
            "key_padding_mask": draw(N, S).masked_fill(padding, -torch.inf),
        },
    }


MASKS = draw_masks()
OPTIONS = [
    {"bias": bias, "kdim": kdim, "vdim": vdim, "add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}
    for bias, (kdim, vdim), add_bias_kv, add_zero_attn in itertools.product(
        (True, False), ((None, None), (6, 7)), (False, True), (False, True)
    )
]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.usefixtures("unchecked")  # 512 calls, whose shapes are checked elsewhere
def test_softmax_equals_torch_in_every_configuration(masks, batch_first):
    for options in OPTIONS:
        theirs, ours = build_pair(batch_first=batch_first, **options)
        inputs = [draw(N, L, E), draw(N, S, options["kdim"] or E, seed=5), draw(N, S, options["vdim"] or E, seed=6)]
        if not batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        for call in ({"average_attn_weights": False}, {"need_weights": False}):
            expected = theirs(*inputs, **MASKS[masks], **call)
            actual = ours(*inputs, **MASKS[masks], **call)
            torch.testing.assert_close(actual[0], expected[0])
            assert (actual[1] is None) == (expected[1] is None)
            if expected[1] is not None:
                torch.testing.assert_close(actual[1], expected[1])


@pytest.mark.parametrize("masks", ["none", "bool", "float", "padding"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_softmax_equals_torch_without_a_batch(masks, batch_first):
    theirs, ours = build_pair(batch_first=batch_first)
    call = {name: mask[0] if name == "key_padding_mask" else mask for name, mask in MASKS[masks].items()}
    x, memory = draw(L, E), draw(S, E, seed=5)
    for average in (True, False):
        expected = theirs(x, memory, memory, average_attn_weights=average, **call)
        torch.testing.assert_close(ours(x, memory, memory, average_attn_weights=average, **call), expected)
    per_head = MASKS["bool per head"]["attn_mask"][:H]
    expected = theirs(x, memory, memory, attn_mask=per_head)
    torch.testing.assert_close(ours(x, memory, memory, attn_mask=per_head), expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_is_causal_means_what_it_means_in_torch(need_weights):
    theirs, ours = build_pair(batch_first=True)
    x, mask = draw(N, S, E), nn.Transformer.generate_square_subsequent_mask(S).double()
    call = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    torch.testing.assert_close(ours(x, x, x, **call)[0], theirs(x, x, x, **call)[0])
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        theirs(x, x, x, is_causal=True)
    with pytest.raises(InputError, match="attn_mask is missing: expected the causal mask"):
        ours(x, x, x, is_causal=True)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_has_torchs_parameters_and_takes_every_mask(attention):
    theirs, ours = build_pair(attention, batch_first=True)
    extra = {"deep_weight": (H, E // H, E // H)} if attention == "hyla_deep" else {}
    shapes = {name: tuple(value.shape) for name, value in theirs.state_dict().items()}
    assert {name: tuple(value.shape) for name, value in ours.state_dict().items()} == shapes | extra
    x, memory = draw(N, L, E), draw(N, S, E, seed=5).requires_grad_()
    for masks in MASKS.values():
        output, codes = ours(x, memory, memory, average_attn_weights=False, **masks)
        assert output.shape == (N, L, E)
        assert codes.shape == (N, H, L, S)
        (gradient,) = torch.autograd.grad(output.square().sum(), memory)
        assert gradient.isfinite().all()
    hidden = MASKS["padding"]["key_padding_mask"]
    output, codes = ours(x, memory, memory, key_padding_mask=hidden)
    (gradient,) = torch.autograd.grad(output.square().sum(), memory)
    assert not gradient[hidden].any()
    assert not codes.transpose(1, 2)[hidden].any()


@pytest.mark.parametrize("attention", ["linear", "hyla"])
@pytest.mark.parametrize("low", [-torch.inf, -1e9, torch.finfo(torch.float64).min, -1e4])
def test_without_a_softmax_very_low_masks_also_mean_masked(attention, low):
    _, ours = build_pair(attention, batch_first=True)
    x, hidden = draw(N, S, E), torch.ones(S, S).bool().triu(1)
    expected = ours(x, x, x, attn_mask=hidden)
    torch.testing.assert_close(ours(x, x, x, attn_mask=torch.zeros(S, S).double().masked_fill(hidden, low)), expected)


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_a_query_that_sees_nothing_receives_the_output_bias(attention):
    _, ours = build_pair(attention, batch_first=True)
    x = draw(N, S, E).requires_grad_()
    padding = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    output, codes = ours(x, x, x, key_padding_mask=padding)
    torch.testing.assert_close(output[1], ours.out_proj.bias.expand(S, E))
    assert not codes[1].any()
    assert torch.autograd.grad(output.square().sum(), x)[0].isfinite().all()


def test_bf16_gives_the_types_of_torch_and_autocast_keeps_the_codes_precise():
    theirs, ours = (layer.float() for layer in build_pair("softmax", batch_first=True))
    x = draw(N, S, E).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, codes = ours(x, x, x)
        expected = theirs(x, x, x)
    assert (output.dtype, codes.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close((output, codes.bfloat16()), expected, rtol=0.05, atol=0.05)
    theirs, ours, x = theirs.bfloat16(), ours.bfloat16(), x.bfloat16()
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x), rtol=0.05, atol=0.05)


def test_bad_configurations_are_named():
    with pytest.raises(InputError, match="embed_dim 8 is not divisible by num_heads 3"):
        HypernetworkAttention(8, 3)
    with pytest.raises(InputError, match="num_heads is 0: expected a whole number of at least 1"):
        HypernetworkAttention(8, 0)
    with pytest.raises(InputError, match=r"attention of width 1,000,000,000 takes 16 EB of memory"):
        HypernetworkAttention(10**9, 1)
    assert HypernetworkAttention(10**5, 1, device="meta").in_proj_weight.is_meta
    with pytest.raises(InputError, match="unknown attention 'hylo'"):
        HypernetworkAttention(8, 2, attention="hylo")


@pytest.mark.parametrize(
    ("inputs", "masks", "message"),
    [
        ([(N, L, 7), (N, S, E), (N, S, E)], {}, r"query has shape \(2, 3, 7\): expected 3 dimensions .* the last of 8"),
        ([(N, L, E), (S, E), (S, E)], {}, r"key has shape \(5, 8\): expected 3 dimensions"),
        ([(N, L, E), (N, S, E), (N, L, E)], {}, "expected one batch size, and as many keys as values"),
        ([(N, L, E), (1, S, E), (1, S, E)], {}, "expected one batch size, and as many keys as values"),
        ([(N, L, E), (N, S, E), (N, S, E)], {"attn_mask": torch.zeros(S, L)}, r"attn_mask has shape \(5, 3\)"),
        ([(N, L, E), (N, S, E), (N, S, E)], {"key_padding_mask": torch.zeros(S)}, r"expected \(2, 5\)"),
        ([(N, L, E), (N, S, E), (N, S, E)], {"attn_mask": torch.zeros(L, S).int()}, r"type torch\.int32: expected"),
    ],
)
def test_bad_calls_are_named(inputs, masks, message):
    layer = HypernetworkAttention(E, H, batch_first=True)
    with pytest.raises(InputError, match=message):
        layer(*(torch.zeros(shape) for shape in inputs), **masks)


def build_encoder_layer(attention=None, **options):
    layer = randomise(nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True, **options))
    return layer if attention is None else convert(layer, attention)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False}])
def test_encoder_layer_never_takes_the_fast_path(options):
    x = draw(N, S, E)
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    for masks in ({}, {"src_key_padding_mask": padding}):
        expected = build_encoder_layer(**options)(x, **masks)
        for attention in ("softmax", "hyla"):
            layer = build_encoder_layer(attention, **options)
            trained = layer(x, **masks)
            layer.eval()
            torch.testing.assert_close(layer(x, **masks), trained)
            with torch.no_grad():
                torch.testing.assert_close(layer(x, **masks), trained)
            with torch.inference_mode():
                torch.testing.assert_close(layer(x, **masks), trained)
            assert torch.allclose(trained, expected) == (attention == "softmax")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("attention", ["softmax", "hyla"])
def test_encoder_with_padding_gives_the_same_in_training_and_evaluation(when, attention):
    x, padding = draw(N, S, E), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    expected = nn.TransformerEncoder(build_encoder_layer(), 2)(x, src_key_padding_mask=padding)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces that it will not use nested tensors: just what we want
        layer = build_encoder_layer(attention if when == "before" else None)
        encoder: nn.Module = nn.TransformerEncoder(layer, 2)
    if when == "after":
        encoder = convert(encoder, attention)
    trained = encoder(x, src_key_padding_mask=padding)
    assert torch.allclose(trained, expected) == (attention == "softmax")
    encoder.eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder(x, src_key_padding_mask=padding), trained)
        causal = nn.Transformer.generate_square_subsequent_mask(S).double()
        output = encoder(x, mask=causal, is_causal=True)
        changed = torch.cat([x[:, :3], draw(N, 2, E, seed=9)], dim=1)
        torch.testing.assert_close(encoder(changed, mask=causal, is_causal=True)[:, :3], output[:, :3])


def test_convert_keeps_parameters_flags_and_hooks():
    model = nn.ModuleDict(
        {"deep": nn.Sequential(nn.Linear(E, E), nn.MultiheadAttention(E, H, batch_first=True)).eval()}
    )
    before, calls = dict(model.named_parameters()), []
    model["deep"][1].register_forward_hook(lambda *_: calls.append(1))
    assert convert(model) is model
    layer = model["deep"][1]
    assert isinstance(layer, HypernetworkAttention)
    assert (layer.attention, layer.training, layer.batch_first) == ("hyla", False, True)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    layer(*3 * [torch.zeros(N, S, E)])
    assert calls


def test_convert_keeps_shared_layers_shared_and_retargets_what_it_converted_before():
    layer = nn.MultiheadAttention(E, H)
    model = convert(nn.ModuleList([layer, nn.Sequential(layer), layer]), "hyla_deep")
    converted = model[0]
    assert isinstance(converted, HypernetworkAttention)
    assert converted is model[2] is model[1][0]
    assert converted.deep_weight.shape == (H, E // H, E // H)
    convert(model, "linear")
    assert model[0] is converted
    assert (converted.attention, converted.deep_weight) == ("linear", None)
    assert "deep_weight" not in converted.state_dict()


def test_convert_of_a_layer_itself_returns_a_new_one_with_the_same_weights():
    layer = randomise(nn.MultiheadAttention(E, H, batch_first=True))
    x = draw(N, S, E)
    before = layer(x, x, x)[0]
    converted = convert(layer, "hyla_deep")
    assert isinstance(converted, HypernetworkAttention)
    assert converted.in_proj_weight is layer.in_proj_weight
    torch.testing.assert_close(layer(x, x, x)[0], before)
    assert "deep_weight" not in layer.state_dict()


class CustomAttention(nn.MultiheadAttention):
    pass


def test_bad_conversions_are_named_and_change_nothing():
    with pytest.raises(InputError, match=r"nothing to convert in Linear: expected at least one nn\.MultiheadAttention"):
        convert(nn.Linear(2, 2))
    with pytest.raises(InputError, match="unknown attention 'hylo': expected one of softmax, linear, hyla"):
        convert(nn.MultiheadAttention(E, H), "hylo")
    model = nn.Sequential(nn.MultiheadAttention(E, H), CustomAttention(E, H))
    with pytest.raises(InputError, match="cannot convert 1 of type CustomAttention"):
        convert(model)
    assert type(model[0]) is nn.MultiheadAttention


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_with_the_way_out():
    encoder = nn.TransformerEncoder(build_encoder_layer(), 1).eval()
    convert(encoder.layers[0])
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    with torch.no_grad(), pytest.raises(InputError, match=r"convert the whole nn\.TransformerEncoder"):
        encoder(draw(N, S, E), src_key_padding_mask=padding)
