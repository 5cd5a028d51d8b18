"""Claims of the in-context experiment; and the experiment itself, as a user runs it."""

import json
from dataclasses import replace
from functools import partial

import pytest

from recombine.cli import run as run_verb
from recombine.models import TransformerConfig
from recombine.recipes import EXPERIMENTS
from recombine.recipes.in_context import claims
from recombine.recipes.in_context import runs as in_context
from recombine.recipes.in_context.claims import (
    BOTTLENECK,
    CLAIMS,
    CONTROL_BOTTLENECK,
    CONTROL_VANILLA,
    VANILLA,
    Outcome,
    tabulate_claims,
    tabulate_variants,
)
from recombine.tables import Cell
from recombine.tasks import InContext
from recombine.train import TrainingConfig

TASK = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
SIZES = {"attention": "softmax", "num_layers": 1, "embedding_dim": 8, "kqv_dim": 8, "mlp_dim": 8, "num_heads": 2}
SMALL = TransformerConfig(**SIZES, position="none")


def outcome(**values):
    base = {"id": 0.99, "ood": 0.7, "decodable_id": 0.9, "decodable_ood": 0.8, "untrained_ood": 0.1}
    return Outcome(**{**base, "fitted_ood": None, "minutes": 1.0, **values})


def world_as_claimed(seeds=2):
    return [
        (VANILLA, [outcome()] * seeds),
        (BOTTLENECK, [outcome(ood=0.95)] * seeds),
        (CONTROL_VANILLA, [outcome(ood=0.1)] * seeds),
        (CONTROL_BOTTLENECK, [outcome(ood=0.1)] * seeds),
    ]


def test_a_world_as_the_paper_says_shows_every_claim():
    rows = tabulate_claims(world_as_claimed()).rows
    assert [row[1] for row in rows] == ["seen"] * 6 == ["seen"] * len(CLAIMS)


@pytest.mark.parametrize(
    ("number", "variant", "changed"),
    [
        (0, VANILLA, {"id": 0.8}),
        (1, VANILLA, {"ood": 0.95}),
        (2, BOTTLENECK, {"ood": 0.85}),
        (2, VANILLA, {"ood": 0.96}),
        (3, VANILLA, {"decodable_ood": 0.4}),
        (3, VANILLA, {"untrained_ood": 0.75}),
        (4, BOTTLENECK, {"decodable_ood": 0.4}),
        (5, CONTROL_BOTTLENECK, {"ood": 0.3}),
        (5, VANILLA, {"ood": 0.9}),
    ],
)
def test_a_claim_must_hold_for_every_seed(number, variant, changed):
    first = [
        (key, [seeds[0], replace(seeds[1], **changed)] if key == variant else seeds)
        for key, seeds in world_as_claimed()
    ]
    assert tabulate_claims(first).rows[number][1:4] == ("seen in part", 1, 2)
    both = [(key, [replace(seed, **changed) for seed in seeds] if key == variant else seeds) for key, seeds in first]
    assert tabulate_claims(both).rows[number][1:4] == ("not seen", 0, 2)


def test_claims_without_their_runs_are_left_out():
    world = [(variant, seeds) for variant, seeds in world_as_claimed() if variant["setting"] != "control"]
    assert len(tabulate_claims(world).rows) == 5
    row = tabulate_variants(world, [(Cell(value=0.99), Cell(value=0.7))] * 2).as_dicts()[0]
    assert (row["model"], row["held out"], row["z held out"]["value"]) == ("vanilla", {"value": 0.7}, 0.8)


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_comparison_is_there_at_every_scale(scale):
    records = list(EXPERIMENTS["in-context"].records(scale))
    num_runs = 11 * in_context.NUM_SEEDS[scale]
    assert len({json.dumps(record.config.as_dict(), sort_keys=True) for record in records}) == num_runs == len(records)
    for claim in CLAIMS:
        assert all(any(record.settings == variant for record in records) for variant in claim.variants)


def test_the_experiment_from_the_command_line(tmp_path, capsys, monkeypatch):
    """A miniature of every run; then once more, from what the first left behind."""
    experiment = EXPERIMENTS["in-context"]
    needed = [variant for claim in CLAIMS for variant in claim.variants]
    records = [record for record in experiment.records("tiny") if record.settings in needed]

    def shrink(config):
        return replace(
            config,
            task=replace(TASK, support=config.task.support, modules=config.task.modules),
            model=replace(config.model, num_layers=1, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2),
            training=TrainingConfig(steps=20, batch_size=8),
        )

    miniature = [replace(record, config=shrink(record.config)) for record in records]
    monkeypatch.setattr(experiment, "records", lambda scale: miniature)
    monkeypatch.setattr(InContext, "evaluation_instances", 50)
    quick = {
        "measure_decodability": {"num_instances": 100},
        "measure_fitted_code": {"num_instances": 50},
        "track_run": {"num_points": 3},
    }
    for name, choices in quick.items():
        monkeypatch.setattr(claims, name, partial(getattr(claims, name), **choices))
    flags = ["reproduce", "in-context", "--scale", "tiny", "--out", str(tmp_path / "runs"), "--device", "cpu"]
    assert run_verb([*flags, "--figures", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr()
    assert "Claims of the paper" in printed.out
    assert "reading 4/4 setting control, model bottleneck, trunk softmax, seed 0" in printed.err
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "in_context_gradients.png",
        "in_context_scores.png",
    ]
    assert run_verb([*flags, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert len(value["tables"]["Claims of the paper"]) == 6
    assert isinstance(value["tables"]["Claims of the paper"][0]["numbers"]["R² trained"]["value"], float)
    assert len(value["tables"]["Gradients between combinations"]) > 4


def test_figures_of_an_experiment_without_any(capsys):
    assert run_verb(["reproduce", "sraven", "--figures", "somewhere"]) == 2
    assert (
        "experiment 'sraven' has no figures: expected one of in-context, length-generalization"
        in capsys.readouterr().err
    )
