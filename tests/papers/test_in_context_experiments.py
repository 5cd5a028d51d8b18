"""Claims of the in-context experiment; and the experiment itself, as a user runs it."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from recombine.cli.main import run as run_verb
from recombine.sweeps import Record
from recombine.tasks.modular.in_context import InContext
from recombine.training.config import TrainingConfig, default_run
from recombine_papers import EXPERIMENTS
from recombine_papers.base import Finished
from recombine_papers.card import is_concerned
from recombine_papers.claims import tabulate_claims
from recombine_papers.in_context import measures
from recombine_papers.in_context.figures import draw_supports
from recombine_papers.in_context.runs import BOTTLENECK, VANILLA, tabulate_variants
from recombine_papers.in_context.theory import compare_execution, score_inference
from stored_runs import stored_run

TASK = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
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


@torch.no_grad()
def test_attention_executes_a_task_and_the_examples_determine_it():
    task = InContext(seed=1)
    assert compare_execution(task) < 1e-9
    assert score_inference(task) > 0.99
    assert score_inference(replace(task, num_examples=1, output_size=1)) < 0.9  # one number for two strengths


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


def test_the_curve_over_supports_has_a_line_per_model(tmp_path, monkeypatch):
    records = [record for record in EXPERIMENTS["in-context-supports"].records("small") if record.seed < 2]
    runs = [
        stored_run(record, {"test": 1.0, "ood": record.settings["trained"] / 20}, {"fitted_code": 0.9})
        for record in records
    ]
    drawn: dict[str, Any] = {}
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda axes, **_: drawn.update(axes=axes))
    (path,) = draw_supports(Finished(tuple(runs)), tmp_path)
    lines = {line.get_label(): line for line in drawn["axes"].lines if not line.get_label().startswith("_")}
    assert list(lines) == ["vanilla", "bottleneck", "fitted code"]
    assert list(lines["vanilla"].get_xdata()) == [6, 8, 10, 12]
    assert list(lines["vanilla"].get_ydata()) == pytest.approx([0.3, 0.4, 0.5, 0.6])
    assert path.exists()


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_comparison_is_there_at_every_scale(scale):
    records = list(EXPERIMENTS["in-context"].records(scale))
    assert len(records) == 13 * (1 if scale == "tiny" else 3)
    for claim in CLAIMS:
        assert any(is_concerned(claim, record) for record in records)


@pytest.mark.slow
def test_the_experiment_from_the_command_line(tmp_path, capsys, monkeypatch):
    """A miniature of every run; then once more, from what the first left behind."""
    experiment = EXPERIMENTS["in-context"]
    records = [r for r in experiment.records("tiny") if any(is_concerned(claim, r) for claim in CLAIMS)]

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
    monkeypatch.setattr("recombine.foundation.display.SILENT_SECONDS", 0)
    quick = {
        "measure_decodability": {"num_instances": 100},
        "measure_fitted_code": {"num_instances": 50},
        "track_run": {"num_points": 3},
    }
    for name, choices in quick.items():
        monkeypatch.setattr(measures, name, partial(getattr(measures, name), **choices))
    flags = ["reproduce", "in-context", "--scale", "tiny", "--out", str(tmp_path / "runs"), "--device", "cpu"]
    assert run_verb([*flags, "--figures", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr()
    assert "Claims" in printed.out
    assert f"reading runs: 1/{len(miniature)} " in printed.err
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "in_context_gradients.png",
        "in_context_scores.png",
    ]
    assert run_verb([*flags, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert len(value["tables"]["Claims"]) == 9
    assert isinstance(value["tables"]["Claims"][4]["number"]["value"], float)


def test_figures_of_an_experiment_without_any(capsys):
    assert run_verb(["reproduce", "sraven", "--figures", "somewhere"]) == 2
    drawn = ", ".join(name for name, experiment in EXPERIMENTS.items() if experiment.has_figures)
    assert f"experiment 'sraven' has no figures: expected one of {drawn}" in capsys.readouterr().err
    assert {"dropout", "sraven-paper", "scale-surface", "in-context-supports"} <= set(drawn.split(", "))
