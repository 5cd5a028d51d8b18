"""Rules in latent codes: numbers are those of the probe, the table shows them, figures draw them, claims read them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recombine.inside.collect import collect_activations
from recombine.inside.probe import probe_run
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.sraven.task import SRaven
from recombine.training.config import TrainingConfig
from recombine.training.run import train_run
from recombine_papers import EXPERIMENTS
from recombine_papers.base import Finished, FinishedRun
from recombine_papers.claims import decide
from recombine_papers.hypernetwork import rules as rule_codes
from stored_runs import stored_run

EXPERIMENT: Any = EXPERIMENTS["figure-5"]
NUM_INSTANCES = 400
SMALL = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 16, "num_heads": 4, "num_layers": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A miniature of the first record, with what is read from it."""
    (record, *_) = EXPERIMENT.records("tiny")
    config = record.config
    config = replace(
        config,
        model=replace(config.model, **SMALL),
        training=TrainingConfig(steps=20, batch_size=8, warmup_steps=5),
    )
    run = train_run(config, out=tmp_path_factory.mktemp("runs"), evaluation_instances=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule_codes, "NUM_INSTANCES", NUM_INSTANCES)
        patch.setattr("recombine.foundation.display.SILENT_SECONDS", 60)
        finished = EXPERIMENT.measure_runs(Finished((FinishedRun(replace(record, config=config), run),)), "cpu")
        patch.setattr(rule_codes, "measure_codes", lambda *_: pytest.fail("measured twice"))
        assert EXPERIMENT.measures(run, "cpu") == finished.runs[0].measured
    return finished.runs[0]


def read_codes(run):
    """Codes of the last layer with labels and splits, as the probe keeps them."""
    with np.load(run.path / "probe.npz", allow_pickle=False) as arrays:
        return arrays["activations.codes.1"], arrays["labels"], arrays["split"]


def test_the_numbers_of_the_row_are_those_of_the_probe(trained):
    probe = probe_run(trained.run.path, num_instances=NUM_INSTANCES, tsne=False, device="cpu").numbers
    measured = trained.measured
    for layer in (0, 1):
        site = f"codes.{layer}"
        decoder, structure = probe["decoders"][site]["ood"], probe["structure"][site]
        pairs = {
            "f1": decoder["f1"],
            "f1_untrained": decoder["untrained"]["f1"],
            "purity_rule": structure["module"]["purity"],
            "purity_rule_untrained": structure["module"]["untrained"],
            "purity_target": structure["target"]["purity"],
            "cosine": probe["similarity"][site]["centred"][5][6],
        }
        for name, value in pairs.items():
            assert measured[f"row_{name}_layer_{layer}"] == pytest.approx(value, abs=1e-6), name
    assert measured["f1_majority"] == decoder["majority"]["f1"]
    assert measured["row_cosine_addition_subtraction"] == measured["row_cosine_last"] == measured["row_cosine_layer_1"]
    codes, labels, split = read_codes(trained.run)
    mean = codes[(split == "ood") & (labels[:, 5] > 0.5)].mean(axis=0)
    assert [measured[f"self_code_addition_head_{head}"] for head in range(4)] == pytest.approx(
        list(mean[-4:]), rel=1e-5
    )
    swap: Any = probe["swap"]["splits"]["ood"]
    assert measured["swap_none_own"] == swap["base"]["own"]
    for arm in swap["arms"]:
        reading = {"probed": "row", "all": "all"}[arm["keys"]]
        place = "all_layers" if arm["layers"] == [0, 1] else f"layer_{arm['layers'][0]}"
        for name in ("other", "own", "same_rule"):
            assert measured[f"{reading}_swap_{name}_{place}"] == pytest.approx(arm[name])


def test_the_code_with_itself_is_the_last_part_of_the_codes_with_the_row():
    task = SRaven(num_features=2)
    model = build_model(TransformerConfig(attention="softmax", **SMALL), task, seed=0)
    own, row = (
        collect_activations(model, reading, num_instances=20, sites=()).by_site["codes.1"]
        for reading in rule_codes.make_readings(task).values()
    )
    assert (own.shape[1], row.shape[1]) == (4, 12)
    torch.testing.assert_close(torch.tensor(own), torch.tensor(row[:, -4:]))


def test_layers_are_summarised_by_halves():
    layers = [dict.fromkeys((*rule_codes.HALVED, "cosine"), value) for value in (0.1, 0.3, 0.5, 0.9)]
    numbers = dict(rule_codes.summarise_layers(layers, layers[::-1]))
    assert (numbers["f1_early"], numbers["f1_late"]) == pytest.approx((0.2, 0.7))
    assert (numbers["cosine_last"], numbers["cosine_untrained_last"]) == (0.9, 0.1)
    assert numbers["purity_rule_untrained_layer_1"] == 0.5


def test_the_best_layer_of_a_swap_is_chosen_on_trained_compositions():
    def arms(*shares):
        return {
            "base": {"other": 0.0, "own": 1.0},
            "arms": [
                {"layers": layers, "keys": keys, "other": other, "own": 0.2, "same_rule": 0.5, "interval": [0.0, None]}
                for keys in ("probed", "all")
                for layers, other in zip(([0], [1], [0, 1]), shares, strict=True)
            ],
        }

    swap: Any = {"splits": {"test": arms(0.1, 0.2, 0.3), "ood": arms(0.7, 0.6, 0.8)}}
    numbers = rule_codes.flatten_swaps({"self": swap, "row": swap})
    assert (numbers["row_swap_best_layer"], numbers["row_swap_other_best"]) == (1, 0.6)
    assert numbers["all_swap_other_all_layers"] == 0.8
    assert "row_swap_other_high_best" not in numbers


def test_every_claim_reads_a_number_that_is_measured(trained):
    records = list(EXPERIMENT.records("paper"))
    claims = [claim for claim in EXPERIMENT.claims if claim.tested]
    for claim in claims:
        assert {claim.quantity, getattr(claim, "over", claim.quantity)} <= trained.measured.keys()
        assert any(claim.of.items() <= record.settings.items() for record in records), claim.title
    finished = Finished(tuple(stored_run(record, {"ood": 0.5}, trained.measured, "accuracy") for record in records))
    for claim in claims:
        verdict, number = decide(claim, EXPERIMENT, finished)
        expected = trained.measured[claim.quantity] - (trained.measured[claim.over] if hasattr(claim, "over") else 0)
        assert number.value == pytest.approx(expected)
        assert verdict == "preliminary"
