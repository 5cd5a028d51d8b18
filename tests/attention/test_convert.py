"""HypernetworkAttention inside torch's containers, and the conversion of whole models."""

import copy
import warnings

import pytest
import torch
from torch import nn

from recombine.attention.convert import convert
from recombine.attention.hyla import HypernetworkAttention
from recombine.foundation.errors import InputError
from test_hypernetwork_attention import MASKS, E, H, L, N, S, draw, randomise


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


def test_decoder_layer_equals_torch_for_softmax_and_differs_for_hyla():
    layer = randomise(nn.TransformerDecoderLayer(E, H, 16, dropout=0.0, batch_first=True))
    x, memory = draw(N, L, E), draw(N, S, E, seed=5)
    mask = nn.Transformer.generate_square_subsequent_mask(L).double()
    padding = MASKS["padding"]["key_padding_mask"]
    call = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": padding.double() * -1e30}
    expected = layer(x, memory, **call)
    for attention in ("softmax", "hyla"):
        converted = convert(copy.deepcopy(layer), attention)
        trained = converted(x, memory, **call)
        assert torch.allclose(trained, expected) == (attention == "softmax")
        with torch.no_grad():
            torch.testing.assert_close(converted.eval()(x, memory, **call), trained)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_model_is_saved_and_takes_other_lengths(tmp_path, unchecked):
    plain = nn.TransformerEncoder(build_encoder_layer(norm_first=True), 1, enable_nested_tensor=False)
    encoder = convert(plain).float().eval()
    with torch.no_grad():
        torch.jit.trace(encoder, draw(N, S, E).float()).save(tmp_path / "traced.pt")
        loaded = torch.jit.load(tmp_path / "traced.pt")
        for x in (draw(N, S, E).float(), draw(1, S + 3, E).float()):
            torch.testing.assert_close(loaded(x), encoder(x), atol=1e-5, rtol=1e-4)


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


def test_convert_keeps_shared_layers_shared():
    layer = nn.MultiheadAttention(E, H)
    model = nn.ModuleList([layer, nn.Sequential(layer), layer])
    convert(model)
    assert isinstance(model[0], HypernetworkAttention)
    assert model[0] is model[2] is model[1][0]


def test_convert_retargets_what_it_converted_before():
    model = convert(nn.Sequential(nn.MultiheadAttention(E, H)), "hyla_deep")
    layer = model[0]
    assert layer.deep_weight.shape == (H, E // H, E // H)
    convert(model, "linear")
    assert model[0] is layer
    assert (layer.attention, layer.deep_weight) == ("linear", None)
    assert "deep_weight" not in layer.state_dict()


def test_convert_of_a_layer_itself_returns_a_new_one_with_the_same_weights():
    layer = randomise(nn.MultiheadAttention(E, H, batch_first=True))
    x = draw(N, S, E)
    before = layer(x, x, x)[0]
    converted = convert(layer, "hyla_deep")
    assert isinstance(converted, HypernetworkAttention)
    assert converted.in_proj_weight is layer.in_proj_weight
    torch.testing.assert_close(layer(x, x, x)[0], before)
    assert "deep_weight" not in layer.state_dict()


@pytest.mark.parametrize("attention", ["hyla", "hyla_deep"])
def test_copies_and_state_dicts_give_the_same_function(attention, tmp_path):
    layer = randomise(HypernetworkAttention(E, H, attention=attention, batch_first=True))
    x = draw(N, S, E)
    loaded = HypernetworkAttention(E, H, attention=attention, batch_first=True).double()
    loaded.load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), loaded):
        assert torch.equal(other(x, x, x)[0], layer(x, x, x)[0])
    assert layer.to("meta")(*3 * [x.to("meta")])[0].shape == (N, S, E)


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
