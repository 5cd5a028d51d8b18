"""Interventions on constructed models: what is not used changes nothing, and an answer driven by the code follows it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from recombine.inside.intervene import find_partners, mean_codes, measure_ablations, measure_change, measure_swaps
from recombine.models.base import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.base import Ratio
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.sraven.generator import DISTRIBUTE, deduce_last
from recombine.tasks.sraven.task import SRaven

FUZZY = FuzzyLogic(num_examples=6)
PUZZLES = SRaven(num_features=2)
SOFTMAX = TransformerConfig(attention="softmax", embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=4)


def test_ablating_an_unused_head_changes_nothing():
    model = build_model(SOFTMAX, FUZZY, seed=0)
    with torch.no_grad():
        model.blocks[1].attention.output.weight[:, 2:4] = 0  # head 1 of 4, two features each
    found = measure_ablations(model, FUZZY, metric="r2_pooled", num_instances=100)
    unused = [row for row in found["heads"] if (row["layer"], row["head"]) == (1, 1)]
    assert [row["kind"] for row in unused] == ["zero", "mean"]
    for row in unused:
        for split in ("test", "ood"):
            assert row[split] == pytest.approx({"change": 0, "low": 0, "high": 0}, abs=1e-5)
    used = [row for row in found["heads"] if (row["layer"], row["head"]) == (1, 0) and row["kind"] == "zero"]
    assert abs(used[0]["ood"]["change"]) > 1e-4
    assert len(found["layers"]) == 2 * 3
    assert len(found["heads"]) == 2 * 4 * 2
    assert set(found["base"]) == {"test", "ood"}


def test_a_swap_gives_each_row_the_codes_of_its_partner():
    """A model that answers with its code: after a swap, the mean answer is the same and each single one is another's."""

    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, inputs, *, return_codes=False, code_maps=None):
            codes = inputs[:, None, -1:, :1].expand(-1, 2, -1, -1) * self.scale
            codes = codes if code_maps is None or code_maps[0] is None else code_maps[0](codes)
            return (codes[:, 0, :, 0], [codes]) if return_codes else codes[:, 0, :, 0]

    from recombine.inside.intervene import make_edit, predict

    model, batch = Echo(), FUZZY.sample("test", 0, batch_size=400)
    partner = find_partners(batch.composition)
    with torch.inference_mode():
        mean = mean_codes(model, batch.inputs, 150)[0]
        swapped = predict(model, batch.inputs, [make_edit("swap", mean, None)], batch.inputs[partner])
        assert torch.equal(swapped, model(batch.inputs)[partner])
        averaged = predict(model, batch.inputs, [make_edit("mean", mean, None)])
        torch.testing.assert_close(averaged, model(batch.inputs).mean().expand_as(averaged))
        assert (predict(model, batch.inputs, [make_edit("zero", mean, 0)]) == 0).all()
        assert torch.equal(predict(model, batch.inputs, [make_edit("zero", mean, 1)]), model(batch.inputs))


def test_partners():
    group = torch.tensor([3, 0, 0, 1, 3, 1, 2, 7])
    assert (group[find_partners(group)] != group).all()
    assert sorted(find_partners(group).tolist()) == list(range(8))
    same = find_partners(group, same=True)
    assert (group[same] == group).all()
    assert (same[[0, 1, 2, 3, 4, 5]] != torch.arange(6)).all()


def test_changes_are_paired():
    """A change that is the same in each row is known exactly, however much the rows differ."""
    batch = FUZZY.sample("test", 0, batch_size=200)
    base = torch.randn(200, dtype=torch.float64)
    ones = torch.ones_like(base)
    found = measure_change(Ratio(base, ones), Ratio(base - 0.25, ones), batch)
    assert found == pytest.approx({"change": -0.25, "low": -0.25, "high": -0.25})


class RuleByCode(nn.Module):
    """Finds the rule of the last feature in the first rows, writes it as a code, and applies what the code then says."""

    def __init__(self, *, driven: bool = True) -> None:
        super().__init__()
        self.driven = driven
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, inputs, *, return_codes=False, code_maps=None):
        values = torch.cat([inputs[:, 1::2].argmax(dim=-1), torch.zeros(len(inputs), 1, dtype=torch.long)], dim=1)
        rows = values[:, :9].view(-1, 3, 3)
        fits = torch.stack([(deduce_last((rows[:, r, 0], rows[:, r, 1]), 8) == rows[:, r, 2]) for r in (0, 1)]).all(
            dim=0
        )
        rule = torch.where(fits.any(dim=0), fits.int().argmax(dim=0), torch.tensor(DISTRIBUTE))
        codes = one_hot(rule, 8).float()[:, :, None, None].expand(-1, -1, 2, inputs.shape[1]).clone()
        if code_maps is not None and code_maps[0] is not None:
            codes = code_maps[0](codes)
        said = codes[:, :, -1].mean(dim=-1).argmax(dim=1) if self.driven else rule
        missing = rows[:, 0].sum(dim=1) - rows[:, 2, 0] - rows[:, 2, 1]
        answers = torch.cat([deduce_last((rows[:, 2, 0], rows[:, 2, 1]), 8), missing[None] % 8])
        answer = one_hot(answers.gather(0, said[None])[0], 8).float()[:, None].expand(-1, 2, -1)
        return (answer, [codes]) if return_codes else answer


def test_an_answer_driven_by_the_code_follows_the_swapped_in_rule():
    found: Any = measure_swaps(RuleByCode(), PUZZLES.reading(), num_instances=400)
    for split in ("test", "ood"):
        each = found["splits"][split]
        assert each["base"]["own"] > 0.95
        assert each["base"]["other"] < 0.03
        assert [(arm["layers"], arm["keys"]) for arm in each["arms"]] == [([0], "probed"), ([0], "all")]
        everywhere = each["arms"][1]
        assert everywhere["other"] > 0.95
        assert everywhere["own"] < 0.03
        assert everywhere["interval"][0] <= everywhere["other"] <= everywhere["interval"][1]
        assert everywhere["interval"][0] > each["base"]["interval"][1]
        assert everywhere["same_rule"] > 0.9
        assert each["num_rows"] > 200
        assert sum(everywhere[name] for name in ("other", "own", "neither")) == pytest.approx(1)
        assert all(value is None or value > 0.6 for row in each["by_rule"] for value in row)
        assert all(row[DISTRIBUTE] is None for row in each["by_rule"])


def test_an_answer_that_ignores_the_code_stays_with_its_own_rule():
    found: Any = measure_swaps(RuleByCode(driven=False), PUZZLES.reading(), num_instances=400)
    for each in found["splits"].values():
        for arm in each["arms"]:
            assert {name: arm[name] for name in each["base"]} == each["base"]


def test_rows_are_computed_a_few_at_a_time(monkeypatch):
    """Predictions of a language model are large: no more rows than the task allows, and the same numbers."""
    model = build_model(SOFTMAX, FUZZY, seed=0)
    expected: Any = measure_ablations(model, FUZZY, metric="r2_pooled", num_instances=20)
    swapped: Any = measure_swaps(model, FUZZY.reading(), num_instances=20)
    monkeypatch.setattr(FuzzyLogic, "max_rows_at_once", 7)
    sizes = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    found: Any = measure_ablations(model, FUZZY, metric="r2_pooled", num_instances=20)
    assert max(sizes) == 14  # 7 rows and their donors
    for kind in ("layers", "heads"):
        for row, same in zip(found[kind], expected[kind], strict=True):
            assert row["ood"] == pytest.approx(same["ood"], abs=1e-4)
    sizes.clear()
    again: Any = measure_swaps(model, FUZZY.reading(), num_instances=20)
    assert max(sizes) == 7
    for arm, same in zip(again["splits"]["ood"]["arms"], swapped["splits"]["ood"]["arms"], strict=True):
        assert arm["follows"] == pytest.approx(same["follows"], abs=1e-4)
