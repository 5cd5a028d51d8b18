"""Probes find the codes of converted models by themselves."""

import pytest
import torch
from torch import nn

from recombine.attention.hyla import convert
from recombine.inside.collect import ConvertedModel, show_codes
from recombine.inside.probe import probe_model
from recombine.tasks.fuzzy_logic import FuzzyLogic


class Encoder(nn.Module):
    """Somebody's model: torch's encoder, which knows nothing about codes."""

    def __init__(self, task):
        super().__init__()
        self.embed = nn.Linear(task.input_dim, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.readout = nn.Linear(8, task.output_dim)

    def forward(self, inputs):
        return self.readout(self.encoder(self.embed(inputs))[:, -1:])


@pytest.fixture(scope="module")
def task():
    return FuzzyLogic(num_variables=3, num_examples=7)


@pytest.mark.parametrize("attention", ["hyla", "softmax"])
def test_codes_are_those_of_the_layers_and_can_be_changed(task, attention):
    model = convert(Encoder(task), attention)
    shown = show_codes(model)
    inputs = task.sample("test", 0, batch_size=4).inputs
    predictions, codes = shown(inputs, return_codes=True)
    torch.testing.assert_close(predictions, model(inputs))
    assert [tuple(each.shape) for each in codes] == [(4, 2, inputs.shape[1], inputs.shape[1])] * 2
    changed, after = shown(inputs, return_codes=True, code_maps=[None, torch.zeros_like])
    assert not after[1].any()
    torch.testing.assert_close(after[0], codes[0])
    assert not torch.allclose(changed, predictions)
    torch.testing.assert_close(model(inputs), predictions)  # nothing is left behind
    assert all(layer.watch is None for layer in shown.layers)


def test_examine_needs_no_hint(task):
    model = convert(Encoder(task))
    numbers = probe_model(model, task, num_instances=120, tsne=False, sites=["encoder"]).numbers
    assert [site["name"] for site in numbers["sites"]] == ["codes.0", "codes.1", "encoder"]
    assert len(numbers["ablations"]["layers"]) == 6
    assert "swap" in numbers
    assert show_codes(Encoder(task)).__class__ is Encoder
    assert isinstance(show_codes(model), ConvertedModel)
