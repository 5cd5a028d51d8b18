"""What is collected is what the model computed, at the places a task's reading names."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from recombine import convert
from recombine.foundation.errors import InputError
from recombine.inside.collect import ConvertedModel, collect_activations, expose_codes, find_sites
from recombine.inside.probe import probe_model
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic, SharedReading, evaluate_function
from recombine.tasks.sraven.task import SRaven

SMALL = TransformerConfig(embedding_dim=16, kqv_dim=8, mlp_dim=24, num_heads=4)
FUZZY = FuzzyLogic(num_examples=6)
PUZZLES = SRaven(num_features=2)


def test_fuzzy_logic_is_read_at_the_query_attending_to_itself():
    model = build_model(SMALL, FUZZY, seed=0)
    seen = collect_activations(model, FUZZY.reading(), num_instances=300)
    assert list(seen.by_site) == ["codes.0", "codes.1", "residual.0", "residual.1", "hidden.0", "hidden.1"]
    batch = FUZZY.sample("ood", 0, batch_size=1_000, rows=range(300))
    with torch.inference_mode():
        predictions, codes = model(batch.inputs, return_codes=True)
        final = model.output(model.output_norm(torch.from_numpy(seen.by_site["residual.1"][300:])))
    np.testing.assert_allclose(seen.by_site["codes.1"][300:], codes[1][:, :, -1, -1], atol=1e-5)
    np.testing.assert_allclose(final, predictions[:, -1], atol=1e-5)
    assert seen.by_site["hidden.0"].shape == (600, 24)
    np.testing.assert_array_equal(seen.target[300:], batch.targets)
    assert seen.split.tolist() == ["fit", "id"] * 150 + ["ood"] * 300
    words = [seen.compositions[number] for number in seen.composition[300:]]
    assert words == [FUZZY.describe(tuple(row)) for row in batch.latents.tolist()]
    present = [tuple(np.flatnonzero(row)) for row in seen.labels[300:]]
    assert present == [tuple(row) for row in batch.latents.tolist()]
    assert seen.modules[:2] == ("x1 ∧ x2 ∧ x3 ∧ x4", "x1 ∧ x2 ∧ x3 ∧ ¬x4")


def test_fitting_rows_share_no_composition_with_held_out_rows():
    seen = collect_activations(build_model(SMALL, FUZZY, seed=0), FUZZY.reading(), num_instances=300)
    assert not set(seen.composition[seen.rows("fit", "id")]) & set(seen.composition[seen.rows("ood")])


def test_sraven_is_read_without_permutations_at_its_own_row():
    reading: Any = PUZZLES.reading()
    assert not reading.task.permuted
    assert reading.keys == (-5, -3, -1)
    model = build_model(SMALL, PUZZLES, seed=0)
    seen = collect_activations(model, reading, num_instances=40)
    batch = reading.task.sample("ood", 0, batch_size=1_000, rows=range(40))
    # the tokens of these keys hold the last feature of the last row
    values = batch.inputs[:, list(reading.keys[:-1])].argmax(dim=-1)
    assert torch.equal(values, batch.info["grids"][:, -1, :-1, -1])
    with torch.inference_mode():
        codes = model(batch.inputs, return_codes=True)[1]
    expected = torch.cat([codes[0][:, :, -1, key] for key in reading.keys], dim=1)
    np.testing.assert_allclose(seen.by_site["codes.0"][40:], expected, atol=1e-5)
    np.testing.assert_array_equal(seen.labels[40:].argmax(axis=1), batch.info["rules"][:, -1])
    np.testing.assert_array_equal(seen.target[40:], batch.targets[:, -1])
    assert seen.exclusive
    assert "constant" in seen.modules


@pytest.mark.parametrize("part", ["examples", "query"])
def test_a_shared_reading_gives_the_same_inputs_to_all_functions_of_both_splits(part):
    reading = SharedReading(FUZZY, part)
    batches = [next(iter(reading.batches(split, 50, "cpu"))) for split in ("test", "ood")]
    shared, free = (slice(None, -1), slice(-1, None))[:: 1 if part == "examples" else -1]
    x = torch.cat([batch.inputs[..., :-1] for batch in batches])
    assert (x[:, shared] == x[:1, shared]).all()
    assert not (x[:, free] == x[:1, free]).all()
    for batch in batches:
        y = evaluate_function(batch.inputs[..., :-1], batch.latents)
        assert torch.equal(batch.targets, y[:, -1])
        assert torch.equal(batch.inputs[:, :-1, -1], y[:, :-1])
        assert (batch.inputs[:, -1, -1] == 0).all()


class Own(nn.Module):
    """A user's model: no codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(5, 7)
        self.unused = nn.Linear(1, 1)
        self.answer = nn.Linear(7, 1)

    def forward(self, inputs):
        return self.answer(self.encode(inputs).relu())[:, -1]


def test_any_module_is_seen_by_hooks_that_are_taken_off_again():
    model = Own().train()
    seen = collect_activations(model, FUZZY.reading(), num_instances=20, sites=["encode"])
    batch = FUZZY.sample("test", 0, batch_size=1_000, rows=range(20))
    expected = model.encode(batch.inputs[:, -1]).detach()
    np.testing.assert_allclose(seen.by_site["encode"][:20], expected, atol=1e-6)
    assert seen.skipped["codes"] == "Own has no latent codes: its forward takes no return_codes"
    assert model.training
    assert not model.encode._forward_hooks


def test_places_that_are_not_there():
    with pytest.raises(InputError, match="no submodule 'decode': expected some of encode, unused, answer"):
        find_sites(Own(), ["decode"])
    with pytest.raises(InputError, match="submodule 'unused' was not called"):
        collect_activations(Own(), FUZZY.reading(), num_instances=2, sites=["unused"])


def test_a_part_that_is_never_called_is_left_out_with_its_reason():
    """A list of layers, for one, is a submodule that nobody calls."""
    seen = collect_activations(Own(), FUZZY.reading(), num_instances=2)
    assert set(seen.by_site) == {"encode", "answer"}
    assert seen.skipped["unused"].startswith("submodule 'unused' was not called")


def test_a_site_with_nan_is_left_out_with_its_reason():
    model = build_model(SMALL, FUZZY, seed=0)
    with torch.no_grad():
        model.blocks[1].feedforward.input.bias[0] = torch.nan
    seen = collect_activations(model, FUZZY.reading(), num_instances=10)
    assert "hidden.1" not in seen.by_site
    assert seen.skipped["hidden.1"] == "hidden.1 has NaN or infinite values in 20 of 20 rows"
    assert "codes.1" in seen.by_site


SMALL_TASK = FuzzyLogic(num_variables=3, num_examples=7)


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


@pytest.mark.parametrize("attention", ["hyla", "softmax"])
def test_codes_are_those_of_the_layers_and_can_be_changed(attention):
    model = convert(Encoder(SMALL_TASK), attention)
    shown = expose_codes(model)
    inputs = SMALL_TASK.sample("test", 0, batch_size=4).inputs
    predictions, codes = shown(inputs, return_codes=True)
    torch.testing.assert_close(predictions, model(inputs))
    assert [tuple(each.shape) for each in codes] == [(4, 2, inputs.shape[1], inputs.shape[1])] * 2
    changed, after = shown(inputs, return_codes=True, code_maps=[None, torch.zeros_like])
    assert not after[1].any()
    torch.testing.assert_close(after[0], codes[0])
    assert not torch.allclose(changed, predictions)
    torch.testing.assert_close(model(inputs), predictions)  # nothing is left behind
    assert all(layer.watch is None for layer in shown.layers)


def test_codes_of_converted_models_are_found():
    model = convert(Encoder(SMALL_TASK))
    numbers = probe_model(model, SMALL_TASK, num_instances=120, tsne=False, sites=["encoder"]).numbers
    assert [site["name"] for site in numbers["sites"]] == ["codes.0", "codes.1", "encoder"]
    assert len(numbers["ablations"]["layers"]) == 6
    assert "swap" in numbers
    assert expose_codes(Encoder(SMALL_TASK)).__class__ is Encoder
    assert isinstance(expose_codes(model), ConvertedModel)
