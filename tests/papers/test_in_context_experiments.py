"""Claims of the in-context experiment; and the experiment itself, as a user runs it."""

import pytest

from recombine.cli.main import run as run_verb
from recombine.sweeps import Record
from recombine.training.config import default_run
from recombine_papers import EXPERIMENTS
from recombine_papers.base import Finished
from recombine_papers.card import is_concerned
from recombine_papers.claims import tabulate_claims
from recombine_papers.in_context.runs import BOTTLENECK, VANILLA, tabulate_variants
from stored_runs import stored_run

CONTROL = {"setting": "control"}
CLAIMS = EXPERIMENTS["in-context"].claims
DISCONNECTED = {**BOTTLENECK, "setting": "disconnected"}
PLAIN, PREDICTED, WIDE = (
    {**BOTTLENECK, "model": model} for model in ("bottleneck_mlp", "bottleneck_mlp_weights", "vanilla_wide")
)
TRUNKS = [{**model, "trunk": trunk} for trunk in ("linear", "hyla") for model in (VANILLA, BOTTLENECK)]
ABLATIONS = (PLAIN, PREDICTED, WIDE, *TRUNKS)


def build_world(changed=None, **values):
    """Two seeds of every variant as the paper describes them; `changed` is a variant with other values."""
    runs = []
    for variant in (VANILLA, BOTTLENECK, *ABLATIONS, {**VANILLA, **CONTROL}, {**BOTTLENECK, **CONTROL}, DISCONNECTED):
        held_out = {"control": 0.1, "disconnected": 0.6, "connected": 0.95 if variant["model"] == "bottleneck" else 0.7}
        ood = held_out[variant["setting"]]
        numbers = {
            "test": 0.99,
            "ood": ood,
            "z_held_out": 0.8,
            "z_untrained": 0.1,
            "fitted_code": 0.95,
            "z_trained": 0.9,
        }
        numbers |= values if variant == changed else {}
        scores = {split: numbers.pop(split) for split in ("test", "ood")}
        config = default_run("in_context", "tiny")
        runs += [
            stored_run(Record(settings=variant, config=config).with_seed(seed), scores, numbers) for seed in (0, 1)
        ]
    return Finished(tuple(runs))


def verdicts(world):
    return [row[1] for row in tabulate_claims(CLAIMS, EXPERIMENTS["in-context"], world).rows]


def test_a_world_as_the_paper_says_shows_every_claim():
    assert verdicts(build_world()) == ["seen"] * len(CLAIMS) == ["seen"] * 18


@pytest.mark.parametrize(
    ("number", "variant", "changed"),
    [
        (0, VANILLA, {"test": 0.8}),
        (1, VANILLA, {"ood": 0.95}),
        (2, BOTTLENECK, {"test": 0.8}),
        (3, BOTTLENECK, {"ood": 0.85}),
        (4, VANILLA, {"ood": 0.9}),
        (5, VANILLA, {"z_held_out": 0.4}),
        (6, VANILLA, {"z_untrained": 0.75}),
        (7, BOTTLENECK, {"z_held_out": 0.4}),
        (8, BOTTLENECK, {"z_untrained": 0.75}),
        (9, {**VANILLA, **CONTROL}, {"test": 0.9}),
        (10, BOTTLENECK, {"fitted_code": 0.5}),
        (11, PLAIN, {"ood": 0.9}),
        (12, PREDICTED, {"ood": 0.9}),
        (13, WIDE, {"ood": 0.9}),
        (14, PREDICTED, {"test": 0.8}),
        (15, TRUNKS[0], {"ood": 0.9}),
        (16, TRUNKS[2], {"ood": 0.9}),
        (17, DISCONNECTED, {"ood": 0.9}),
    ],
)
def test_another_world_does_not(number, variant, changed):
    assert verdicts(build_world(variant, **changed))[number] != "seen"


def test_held_out_compositions_of_the_control_decide_nothing():
    """Their modules were never trained."""
    assert verdicts(build_world({**BOTTLENECK, **CONTROL}, ood=0.5)) == ["seen"] * len(CLAIMS)


def test_claims_without_their_runs_are_not_run():
    world = build_world()
    without = Finished(tuple(run for run in world.runs if run.record.settings["setting"] != "control"))
    assert verdicts(without) == [*["seen"] * 9, "not run", *["seen"] * 8]
    row = tabulate_variants(without).as_dicts()[0]
    assert (row["model"], row["z held out"]["value"]) == ("vanilla", 0.8)
    assert row["R² held-out"]["value"] == pytest.approx(0.7)


def test_a_richer_support_trains_more_pairs_and_every_module():
    for record in EXPERIMENTS["in-context-supports"].records("small"):
        certificate = record.config.task.split.certificate
        assert certificate.num_train == record.settings["trained"]
        assert certificate.connected == (record.settings["modules"] == "shared")


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_comparison_is_there_at_every_scale(scale):
    records = list(EXPERIMENTS["in-context"].records(scale))
    assert len(records) == 13 * (1 if scale == "tiny" else 3)
    for claim in CLAIMS:
        assert any(is_concerned(claim, record) for record in records)


def test_figures_of_an_experiment_without_any(capsys):
    assert run_verb(["reproduce", "sraven", "--figures", "somewhere"]) == 2
    drawn = ", ".join(name for name, experiment in EXPERIMENTS.items() if experiment.has_figures)
    assert f"experiment 'sraven' has no figures: expected one of {drawn}" in capsys.readouterr().err
    assert {"dropout", "sraven-paper", "scale-surface", "in-context-supports"} <= set(drawn.split(", "))
