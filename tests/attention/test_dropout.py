"""Dropout of codes: the same bits everywhere, a key for every step and layer, and runs that resume with the same bits."""

from typing import Any

import pytest
import torch
from torch import nn

from attention_cases import define, draw_case, needs_kernel
from recombine import convert
from recombine.attention import definition
from recombine.attention.definition import Dropout, drop, dropout_mask
from recombine.attention.dispatch import use_kernel
from recombine.attention.hyla import HypernetworkAttention
from recombine.attention.layer import Attention, CodeDropout, DropoutKeys, attend_isolated, isolation_mask
from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.training.config import TrainingConfig
from recombine.training.trainer import Trainer

FORMS = ["pairs", "elements"]


def draw_dropout(form="pairs", rate=0.3, key=-123456789):
    return Dropout(rate, form, torch.tensor(key))


def count_on_paper(key, counter):
    """SplitMix64 in Python's whole numbers."""
    word = (counter * 0x9E3779B97F4A7C15 + key) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


@pytest.mark.parametrize("form", FORMS)
def test_which_codes_are_kept_by_hand(form):
    shape = (2, 3, 4, 6)
    kept = dropout_mask(draw_dropout(form), torch.Size(shape), torch.device("cpu")).expand(shape)
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", [("softmax", "linear"), ("none", "linear"), ("rms_head", "hyper_relu")])
def test_isolated_queries_drop_pairs_of_the_whole_layer(choice, form):
    case = draw_case(2, q=9, k=9)
    q, k, v = (tensor.float() for tensor in case.qkv)
    options = {"normalisation": choice[0], "value_network": choice[1], "dropout": draw_dropout(form)}
    got, _ = attend_isolated(q, k, v, num_isolated=4, return_codes=False, **options)
    torch.testing.assert_close(got, define(q, k, v, mask=isolation_mask(9, 9, 4), **options))


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
    with pytest.raises(InputError, match="dropout is 'x': expected a number from 0 to below 1"):
        HypernetworkAttention(8, 2, dropout="x")
    with pytest.raises(InputError, match="unknown form of dropout 'heads': expected one of pairs, elements"):
        CodeDropout(0.5, "heads")


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


SIZES: dict[str, Any] = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 16, "num_heads": 4}
TASK = FuzzyLogic(num_examples=8)


def build_trainer(task=TASK, compile=False, **choices):
    config = TransformerConfig(**SIZES, **choices)
    model = build_model(config, task, seed=0)
    return Trainer(model, task, TrainingConfig(steps=100, batch_size=32), "cpu", compile=compile)


def train(trainer, steps):
    return torch.stack([trainer.advance() for _ in range(steps)])


@pytest.mark.parametrize("form", ["pairs", "elements"])
def test_the_same_bits_whatever_torch_draws_meanwhile(form):
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(train(build_trainer(attention_dropout=0.2, attention_dropout_form=form), 10))
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], train(build_trainer(), 10))


def test_training_resumes_with_the_same_bits():
    """The key depends on seed, step and layer alone: a checkpoint needs no state of a generator."""
    whole, part, resumed = (build_trainer(attention_dropout=0.2) for _ in range(3))
    losses = train(whole, 10)
    train(part, 6)
    resumed.load_state(part.state(), 6)
    assert torch.equal(train(resumed, 4), losses[6:])


@needs_kernel
@pytest.mark.parametrize(("form", "rate"), [("pairs", 0.0), ("pairs", 0.2), ("elements", 0.2)])
@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_the_same_losses_by_kernel_and_by_definition(attention, form, rate, monkeypatch):
    choices: dict[str, Any] = {"attention": attention, "attention_dropout": rate, "attention_dropout_form": form}
    with use_kernel("reference"):
        expected = train(build_trainer(**choices), 20)
    monkeypatch.setattr(definition, "attend", None)  # training keeps the fused path
    torch.testing.assert_close(train(build_trainer(**choices), 20), expected, rtol=1e-4, atol=1e-5)
