"""What tasks say about themselves to a probe: labels, instances, and the answers to expect under swapped codes."""

import pytest
import torch

from recombine.inside.intervene import measure_swaps
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks import TASKS
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.modular.teacher import apply_teacher
from recombine.tasks.reading import Reading
from recombine.tasks.sampling import Batch, evaluation_batches
from recombine.tasks.sraven.generator import DISTRIBUTE, RULES
from recombine.tasks.sraven.task import SRaven

IN_CONTEXT = InContext(input_size=3, hidden_size=4, num_examples=6, num_queries=2, output_size=2)
PUZZLES = SRaven(num_features=2)


@pytest.mark.parametrize("name", TASKS)
def test_every_reading_names_its_labels(name):
    reading = TASKS[name].preset("tiny").task.reading()
    for split in ("test", "ood"):
        batch = Batch.join(list(reading.batches(split, 7)))
        labels = reading.label(batch)
        assert labels.shape == (7, len(reading.module_names))
        assert reading.target(batch).shape == (7,)
        assert all(key < 0 for key in reading.keys)


def test_the_default_reading_labels_modules():
    task = TASKS["goal_grid"].preset("tiny").task
    batch = next(evaluation_batches(task, "ood", 5))
    reading = Reading(task)
    for row, modules in zip(reading.label(batch), batch.latents.tolist(), strict=True):
        present = {reading.modules[i] for i in row.nonzero().flatten().tolist()}
        assert present == set(modules) - {-1}


def test_the_rule_of_the_partner_applied_to_the_own_row():
    """By hand, for every pair of rows; distribute three and equal answers are left out."""
    reading = PUZZLES.reading()
    batch = Batch.join(list(reading.batches("ood", 60)))
    partner = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    expected = reading.counterfactual(batch, partner, batch.targets[:, -1])
    for row in range(60):
        first, second, own = batch.info["grids"][row, -1, :, -1].tolist()
        rule, other_rule = (int(batch.info["rules"][i, -1]) for i in (row, partner[row]))
        assert expected.own[row] == own
        if other_rule in (DISTRIBUTE, rule):
            assert not expected.distinct[row]
            continue
        steps = {"constant": 0, "progression +1": 2, "progression +2": 4, "progression -1": -2, "progression -2": -4}
        sums = {"addition": first + second, "subtraction": first - second}
        answer = (first + steps[RULES[other_rule]] if RULES[other_rule] in steps else sums[RULES[other_rule]]) % 8
        assert expected.other[row] == answer
        assert expected.distinct[row] == (answer != own)


def test_in_context_codes_are_swapped_at_the_same_query():
    reading = IN_CONTEXT.reading().swap
    batches = {split: Batch.join(list(reading.batches(split, 20))) for split in ("test", "ood")}
    last = torch.cat([batch.inputs[:, -1] for batch in batches.values()])
    assert (last == last[0]).all()
    assert (last[:, IN_CONTEXT.input_size :] == 0).all()
    for split, batch in batches.items():
        as_trained = next(evaluation_batches(IN_CONTEXT, split, 20))
        assert torch.equal(batch.inputs[:, :-1], as_trained.inputs[:, :-1])
        x = batch.inputs[:, IN_CONTEXT.num_examples :, : IN_CONTEXT.input_size]
        expected = apply_teacher(IN_CONTEXT.teacher, batch.info["strengths"], x)
        torch.testing.assert_close(batch.targets, expected)


def test_in_context_swaps_are_measured_by_their_slope():
    config = TransformerConfig(attention="hyla", embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=4, position="none")
    model = build_model(config, IN_CONTEXT, seed=0)
    swap = measure_swaps(model, IN_CONTEXT.reading(), num_instances=80)
    assert swap["kind"] == "functions"
    for each in swap["splits"].values():
        follows = {(tuple(arm["layers"]), arm["keys"]): arm["follows"] for arm in each["arms"]}
        assert follows[(0,), "probed"] == pytest.approx(0, abs=1e-5)  # the query has not met its examples
        assert abs(follows[(0, 1), "all"]) > 1e-3
