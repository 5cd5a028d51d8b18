"""Claims, decodability and gradients of the in-context experiment; and the experiment itself, as a user runs it."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from recombine.cli import run as run_verb
from recombine.errors import InputError
from recombine.models import HypernetworkTransformerConfig, TransformerConfig, build_model
from recombine.probe.measures.decodability import measure_decodability
from recombine.probe.measures.fitted_code import fit_code, measure_fitted_code
from recombine.probe.measures.gradients import combination_gradients, measure_gradients, track_gradients
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
from recombine.run import load_run, train_run
from recombine.tables import Cell
from recombine.tasks import InContext
from recombine.train import TrainingConfig

TASK = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
SIZES = {"attention": "softmax", "num_layers": 1, "embedding_dim": 8, "kqv_dim": 8, "mlp_dim": 8, "num_heads": 2}
SMALL = TransformerConfig(**SIZES, position="none")


class Shift(nn.Module):
    """Predicts a constant: its gradient is twice the error, the same for all combinations whose means agree."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        self.shift = nn.Parameter(torch.tensor(100.0))

    def forward(self, inputs):
        return self.shift.expand(len(inputs), self.task.num_queries, self.task.output_size)


def test_gradients_that_agree_have_no_variance():
    """Far from every target, all combinations pull a constant the same way."""
    found = measure_gradients(Shift(TASK), TASK, num_instances=600)
    assert found["variance_share"] == pytest.approx(0, abs=1e-3)
    assert found["transfer"] == pytest.approx(1, abs=1e-2)


class Table(nn.Module):
    """One constant for each training combination, which it knows from the strengths hidden in the first example."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        self.values = nn.Parameter(torch.full((len(task.split.train),), 100.0))

    def forward(self, inputs):
        number = inputs[:, 0, 0].long()
        return self.values[number][:, None, None].expand(-1, self.task.num_queries, self.task.output_size)


def test_gradients_that_have_nothing_in_common_are_all_variance(monkeypatch):
    sample = InContext.sample

    def sample_with_number(self, *arguments, **choices):
        batch = sample(self, *arguments, **choices)
        batch.inputs[:, 0, 0] = batch.composition % 6
        return batch

    monkeypatch.setattr(InContext, "sample", sample_with_number)
    assert measure_gradients(Table(TASK), TASK, num_instances=600)["variance_share"] == pytest.approx(1, abs=1e-6)


def test_a_combinations_gradient_is_that_of_its_rows():
    model = build_model(SMALL, TASK, seed=0)
    gradients = combination_gradients(model, TASK, "test", 60, 0)
    batch = TASK.sample("test", 10**6, batch_size=60)
    rows = batch.composition == 2
    loss = (model(batch.inputs[rows]) - batch.targets[rows]).square().mean()
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(gradients[2].float(), expected, atol=1e-5, rtol=1e-4)
    assert len(gradients) == 6


def small_run(**training):
    run = in_context.build_run("tiny", "vanilla")
    return replace(run, task=TASK, model=SMALL, training=TrainingConfig(batch_size=8, **{"steps": 20, **training}))


def test_the_twin_of_a_run_is_the_run(tmp_path):
    """What is measured at the last step is what the saved run has there."""
    config = small_run()
    rows = track_gradients(config, num_points=3)
    assert [row["step"] for row in rows] == [1, 4, 20]
    run = train_run(config, out=tmp_path, device="cpu", evaluation_instances=50)
    model = build_model(config.model, config.task, seed=0)
    tensors, _ = run.load_checkpoint()
    model.load_state_dict({name.removeprefix("model/"): each for name, each in tensors.items() if "model/" in name})
    again = measure_gradients(model, TASK, index=2)
    assert again == pytest.approx({name: rows[-1][name] for name in again}, rel=1e-4)


def test_decodability_is_measured_once(tmp_path, monkeypatch):
    run = train_run(small_run(), out=tmp_path, device="cpu", evaluation_instances=50)
    found = measure_decodability(run.path, num_instances=200, device="cpu")
    assert list(found["sites"]) == ["residual.0"]
    assert set(found["sites"]["residual.0"]) == {"id", "ood", "untrained"}
    monkeypatch.setattr("recombine.probe.measures.decodability.decode_sites", None)
    assert measure_decodability(run.path, num_instances=200, device="cpu") == found


def test_a_code_that_is_fitted_tells_execution_from_inference(tmp_path):
    """The teacher's own modules behind an inference that knows nothing: the code can be fitted, not inferred."""
    config = HypernetworkTransformerConfig(**SIZES, code_dim=6, execution_dim=TASK.hidden_size)
    run = train_run(replace(small_run(steps=1), model=config), out=tmp_path, evaluation_instances=50)
    _, _, model = load_run(run.path)
    with torch.no_grad():
        model.execution.weight.copy_(TASK.teacher.weights[0].transpose(1, 2))
        model.execution.bias.zero_()
        model.execution.readout.weight.copy_(TASK.teacher.readout.T)
        model.execution.readout.bias.zero_()
    batch = TASK.sample("ood", 0, batch_size=40)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with torch.no_grad():
        answers = model.execution(fit_code(model, batch.inputs), model.queries(batch.inputs))
    error = (answers - batch.targets).square().mean(dim=(1, 2)) / batch.targets.var()
    assert error.median() < 1e-3  # six examples leave some codes open
    assert (model(batch.inputs) - batch.targets).square().mean() / batch.targets.var() > 0.5
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_a_fitted_code_is_measured_once_and_of_a_bottleneck_alone(tmp_path, monkeypatch):
    config = HypernetworkTransformerConfig(**SIZES, execution_dim=8)
    run = train_run(replace(small_run(), model=config), out=tmp_path, evaluation_instances=50)
    found = measure_fitted_code(run.path, num_instances=100)
    assert found["fitted"]["ood"] > found["inferred"]["ood"]
    vanilla = train_run(small_run(), out=tmp_path, evaluation_instances=50)
    monkeypatch.setattr("recombine.probe.measures.fitted_code.fit_code", None)
    assert measure_fitted_code(run.path, num_instances=100) == found
    with pytest.raises(InputError, match="kind 'transformer': expected 'hypernetwork_transformer'"):
        measure_fitted_code(vanilla.path)


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
        "experiment 'sraven' has no figures: expected one of in-context, scale-decodability" in capsys.readouterr().err
    )
