"""In-context functions of a modular teacher: the definition, the supports, the control, the scores, the optimum."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.tasks.modular.in_context import InContext

TASK = InContext(input_size=4, hidden_size=8, num_examples=12, num_queries=3)
CONTROL = InContext(input_size=4, hidden_size=8, num_examples=12, num_queries=3, modules="own")


def value(ratio):
    return (ratio.numerator.sum() / ratio.denominator.sum()).item()


def naive_teacher(teacher, modules, strengths, x):
    """The definition, one module at a time."""
    weight = sum(z * teacher.weights[0][m] for m, z in zip(modules, strengths, strict=True))
    return (x @ weight).clamp_min(0) @ teacher.readout


@settings(max_examples=15, deadline=None)
@given(
    num_active=st.integers(2, 3),
    input_size=st.integers(1, 5),
    hidden_size=st.integers(1, 6),
    output_size=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_batches_follow_the_definition(num_active, input_size, hidden_size, output_size, seed):
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "output_size": output_size}
    task = InContext(num_active=num_active, num_examples=5, num_queries=2, seed=seed, **sizes)
    for split in task.splits:
        batch = task.sample(split, 0, batch_size=3)
        for row in range(3):
            modules = batch.latents[row].tolist()
            assert tuple(modules) == task.split.compositions(split)[batch.composition[row]]
            strengths = batch.info["strengths"][row]
            assert set(strengths.nonzero()[:, 0].tolist()) == set(modules)
            assert (strengths[modules] >= 0.5).all()
            assert (strengths[modules] < 1).all()
            x, y = batch.inputs[row].split([input_size, output_size], dim=-1)
            expected = naive_teacher(task.teacher, modules, strengths[modules], x)
            torch.testing.assert_close(y[:5], expected[:5], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(batch.targets[row], expected[5:], atol=1e-5, rtol=1e-5)
            assert (y[5:] == 0).all()
            assert x.abs().max() <= math.sqrt(3)


@pytest.mark.parametrize(
    ("given_settings", "trained", "num_components", "min_coverage"),
    [
        ({}, "01 05 12 23 34 45", 1, 2),
        ({"num_active": 3}, "012 045 234", 1, 1),
        ({"support": "disconnected"}, "01 02 12 34 35 45", 2, 2),
        ({"support": "disconnected", "num_active": 3}, "012 345", 2, 1),
        ({"support": "custom", "combinations": "0-1 2-3 4-5"}, "01 23 45", 3, 1),
        ({"support": "custom", "combinations": "5-0,0-1,0-2,0-3,0-4"}, "01 02 03 04 05", 1, 1),
    ],
)
def test_supports_of_the_papers_and_certificates(given_settings, trained, num_components, min_coverage):
    split = InContext(**given_settings).split
    certificate = split.certificate
    assert " ".join("".join(map(str, modules)) for modules in split.train) == trained
    assert len(split.train + split.ood) == math.comb(6, given_settings.get("num_active", 2))
    assert certificate.num_components == num_components
    assert certificate.min_coverage == min_coverage
    assert certificate.overlap == 0


def test_compositions_of_the_control_share_no_module():
    """Each composition has its own weights, and the certificate says that held-out ones are made of untrained modules."""
    assert CONTROL.latent_size == 2 * 15
    assert len(CONTROL.split.train) == len(TASK.split.train)
    used = [module for composition in CONTROL.all_compositions for module in composition]
    assert sorted(used) == list(range(30))
    certificate = CONTROL.split.certificate
    assert certificate.min_coverage == 0
    assert not certificate.connected
    assert certificate.sha256 != TASK.split.certificate.sha256
    batch = CONTROL.sample("ood", 0, batch_size=4)
    latent = batch.info["strengths"]
    modules = latent[0].nonzero()[:, 0].tolist()
    assert modules == batch.latents[0].tolist()
    assert min(modules) >= 12  # those below are trained
    expected = naive_teacher(CONTROL.teacher, modules, latent[0, modules], batch.inputs[0, 12:, :4])
    torch.testing.assert_close(batch.targets[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("task", [TASK, CONTROL, InContext(num_active=3, input_size=4, support="disconnected")])
@pytest.mark.parametrize("split", ["test", "ood"])
def test_the_agnostic_optimum_finds_the_task_from_examples_alone(task, split):
    batch = task.sample(split, 0, batch_size=100)
    references = task.reference_predictions(batch, split=split, metrics=("r2", "r2_pooled"))
    agnostic = references["agnostic"]["r2_pooled"]
    assert torch.equal(agnostic, task.best_predictions(batch, split=None, metric="r2"))
    assert 0.999 < value(task.metrics(agnostic, batch)["r2_pooled"]) < 1
    assert value(task.metrics(references["ceiling"]["r2"], batch)["r2"]) == 1
    if task.modules == "shared":
        found = task.infer_latent(batch)
        assert ((found - batch.info["strengths"]).abs().amax(dim=1) < 1e-2).float().mean() > 0.97


def test_the_agnostic_optimum_looks_at_the_context():
    batch = TASK.sample("ood", 0, batch_size=50)
    batch.inputs[:, :12, 4:] = batch.inputs[:, :12, 4:].roll(1, dims=0)
    agnostic = TASK.best_predictions(batch, split=None, metric="r2_pooled")
    assert value(TASK.metrics(agnostic, batch)["r2_pooled"]) < 0.5
