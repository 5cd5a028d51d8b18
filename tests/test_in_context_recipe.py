"""Claims of the in-context experiment; and the experiment itself, as a user runs it."""

import json
from dataclasses import replace
from functools import partial

import pytest

from recombine.cli import run as run_verb
from recombine.models import TransformerConfig
from recombine.recipes import EXPERIMENTS, in_context
from recombine.recipes.experiment import SEED
from recombine.recipes.in_context import claims as in_context_claims
from recombine.recipes.in_context.claims import CLAIMS, Outcome, tabulate_claims, tabulate_variants
from recombine.tasks import InContext
from recombine.train import TrainingConfig

TASK = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
SIZES = {"attention": "softmax", "num_layers": 1, "embedding_dim": 8, "kqv_dim": 8, "mlp_dim": 8, "num_heads": 2}
SMALL = TransformerConfig(**SIZES, position="none")


def outcome(**values):
    base = {"id": 0.99, "ood": 0.7, "decodable_id": 0.9, "decodable_ood": 0.8, "untrained_ood": 0.1}
    return Outcome(**{**base, "fitted_ood": None, "minutes": 1.0, **values})


def outcomes_as_claimed(seeds=2):
    return {
        "connected / vanilla / softmax": [outcome()] * seeds,
        "connected / bottleneck / softmax": [outcome(ood=0.95)] * seeds,
        "control / vanilla / softmax": [outcome(ood=0.1)] * seeds,
        "control / bottleneck / softmax": [outcome(ood=0.1)] * seeds,
    }


def test_a_world_as_the_paper_says_shows_every_claim():
    rows = tabulate_claims(outcomes_as_claimed()).rows
    assert [row[1] for row in rows] == ["seen"] * 6 == ["seen"] * len(CLAIMS)


@pytest.mark.parametrize(
    ("number", "variant", "changed"),
    [
        (0, "connected / vanilla / softmax", {"id": 0.8}),
        (1, "connected / vanilla / softmax", {"ood": 0.95}),
        (2, "connected / bottleneck / softmax", {"ood": 0.85}),
        (2, "connected / vanilla / softmax", {"ood": 0.96}),
        (3, "connected / vanilla / softmax", {"decodable_ood": 0.4}),
        (3, "connected / vanilla / softmax", {"untrained_ood": 0.75}),
        (4, "connected / bottleneck / softmax", {"decodable_ood": 0.4}),
        (5, "control / bottleneck / softmax", {"ood": 0.3}),
        (5, "connected / vanilla / softmax", {"ood": 0.9}),
    ],
)
def test_one_seed_that_says_otherwise_is_enough(number, variant, changed):
    world = outcomes_as_claimed()
    world[variant] = [world[variant][0], replace(world[variant][1], **changed)]
    verdicts = [row[1] for row in tabulate_claims(world).rows]
    assert verdicts[number] == "not seen (1 of 2 seeds)"


def test_claims_without_their_runs_are_left_out():
    world = {name: each for name, each in outcomes_as_claimed().items() if "control" not in name}
    assert len(tabulate_claims(world).rows) == 5
    assert tabulate_variants(world).rows[0][1] == "0.990 ± 0.000"


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_comparison_is_there_at_every_scale(scale):
    runs = in_context.in_context(scale)
    num_runs = 11 * in_context.NUM_SEEDS[scale]
    assert len(runs) == len({json.dumps(run.as_dict(), sort_keys=True) for run in runs.values()}) == num_runs
    for claim in CLAIMS:
        assert all(f"{variant} / seed 0" in runs for variant in claim.variants)


def test_the_experiment_from_the_command_line(tmp_path, capsys, monkeypatch):
    """A miniature of every run; then once more, from what the first left behind."""

    def miniature(scale):
        needed = {variant for claim in CLAIMS for variant in claim.variants}
        runs = in_context.in_context("tiny").items()
        chosen = {label: run for label, run in runs if label.partition(SEED)[0] in needed}
        return {
            label: replace(
                run,
                task=replace(TASK, support=run.task.support, modules=run.task.modules),
                model=replace(run.model, num_layers=1, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2),
                training=TrainingConfig(steps=20, batch_size=8),
            )
            for label, run in chosen.items()
        }

    monkeypatch.setattr(InContext, "evaluation_instances", 50)
    quick = {
        "measure_decodability": {"num_instances": 100},
        "measure_fitted_code": {"num_instances": 50},
        "track_run": {"num_points": 3},
    }
    for name, choices in quick.items():
        monkeypatch.setattr(in_context_claims, name, partial(getattr(in_context_claims, name), **choices))
    monkeypatch.setitem(EXPERIMENTS, "in-context", replace(EXPERIMENTS["in-context"], runs=miniature))
    flags = ["reproduce", "in-context", "--scale", "tiny", "--out", str(tmp_path / "runs"), "--device", "cpu"]
    assert run_verb([*flags, "--quiet", "--figures", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr().out
    assert "claims of the paper" in printed
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "in_context_gradients.png",
        "in_context_scores.png",
    ]
    assert run_verb([*flags, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert len(value["tables"]["claims of the paper"]) == 6
    assert len(value["tables"]["gradients between combinations"]) > 4


def test_figures_of_an_experiment_without_any(capsys):
    assert run_verb(["reproduce", "sraven", "--figures", "somewhere"]) == 2
    assert (
        "unknown experiment with figures 'sraven': expected one of in-context, scale-decodability"
        in capsys.readouterr().err
    )
