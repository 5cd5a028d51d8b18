"""Runs of several seeds in the report: grouped by what they are, never named by a seed."""

import json

import pytest

from recombine.report.page import render
from recombine.report.read import group_seeds, read_runs, seed_lead
from recombine.training.comparison import order_runs
from recombine.training.directory import RunDirectory
from report_cases import make_score, words


def make_seed(root, width, seed, value):
    """A finished run of a network of this width."""
    config = {"task": {"name": "hyperteacher", "seed": seed}, "model": {"kind": "mlp", "hidden_dim": width}}
    run = RunDirectory.create(root, "run", config)
    sha256 = str(seed) * 64
    facts = {"num_train": 20, "num_ood": 3, "num_unknown": 0, "overlap": 0, "num_components": 1, "sha256": sha256}
    certificate = facts | {"covered": True, "connected": True, "coverage": {"0": 3, "1": 2}}
    run.write_json("split.json", {"certificate": certificate})
    run.write_json("environment.json", {"torch": "2.13.0", "source_sha256": "a" * 64})
    (run.path / "metrics.jsonl").write_text("")
    sums = {
        split: {"r2": [[10 * value, 10 * value + 0.1, 10 * value], [10.0, 10.0, 10.0]]} for split in ("test", "ood")
    }
    result = {"task": "hyperteacher", "label": f"mlp-{width}", "num_parameters": 9, "seed": seed, "steps": 5}
    result |= {"seconds": 1.0, "steps_per_second": 5.0, "split_sha256": sha256, "composition_sums": sums}
    result["scores"] = {split: {"r2": make_score(value)} for split in ("test", "ood")}
    (run.path / "result.json").write_text(json.dumps(result))
    return run.path


@pytest.fixture
def runs(tmp_path):
    # the first run of one group has another seed than the first of the other
    rows = [(512, 2, 0.98), (16, 1, 0.5), (16, 2, 0.55), (512, 1, 0.97)]
    return read_runs([make_seed(tmp_path, *row) for row in rows])


def test_groups_are_named_by_what_differs_and_runs_end_with_their_seed(runs):
    groups = group_seeds(runs, "r2")
    assert [(group.label, len(group.runs)) for group in groups] == [("hidden dim 512", 2), ("hidden dim 16", 2)]
    assert {run.label for run in runs} == {
        f"hidden dim {width} · seed {seed}" for width in (16, 512) for seed in (1, 2)
    }
    lead = seed_lead(groups, "r2")
    assert lead is not None
    assert lead.value == pytest.approx(0.45)


def test_the_headline_is_about_networks(runs):
    answer = words(render(runs, "t", gallery=False), '<p class="answer">', "</p>")
    assert answer.startswith("On held-out compositions, the R² of hidden dim 512 is 0.450 above")
    assert "that of hidden dim 16 (paired by seed:" in answer


def test_two_seeds_have_no_interval_but_their_scores(runs):
    page = render(runs, "t", gallery=False)
    assert "(paired by seed: +0.430 and +0.470)" in words(page, '<p class="answer">', "</p>")
    lead = words(page, '<p class="lead">', "</p>")
    assert "hidden dim 512 has R² 0.978 on held-out compositions (its two seeds 0.973 and 0.983)" in lead
    assert "interval" not in lead
    assert "with two seeds, both scores are given instead" in page
    (wide, _) = group_seeds(runs, "r2")
    score = wide.score("ood", "r2")
    assert (score.low, score.high) == pytest.approx((0.9733, 0.9833), abs=1e-4)
    assert wide.held_out.low < 0.95  # the interval, which decides whether a difference is clear


def test_three_seeds_have_an_interval(tmp_path):
    runs = read_runs([make_seed(tmp_path, 16, seed, 0.5 + 0.2 * seed) for seed in range(3)])
    page = render(runs, "t", gallery=False)
    assert "(95 % interval 0." in words(page, '<p class="answer">', "</p>")
    assert "too few" not in page
    (group,) = group_seeds(runs, "r2")
    assert group.score("ood", "r2").high == group.held_out.high == 1.0  # the ceiling


def test_the_runs_of_a_folder_are_ordered_by_their_settings_with_numbers_as_numbers(tmp_path):
    rows = [(512, 2), (64, 10), (64, 9), (512, 1)]
    runs = [RunDirectory.open(make_seed(tmp_path, width, seed, 0.5)) for width, seed in rows]
    ordered = [(run.config["model"]["hidden_dim"], run.config["task"]["seed"]) for run in order_runs(runs)]
    assert ordered == [(64, 9), (64, 10), (512, 1), (512, 2)]
    assert order_runs([]) == []
