"""Records, filters, claims and their verdicts; experiments from outside the package."""

import json
from dataclasses import replace
from typing import Any

import pytest

from recombine.cli.main import run as run_verb
from recombine.cli.reproduce import ReproduceOptions, choose_records, filter_records
from recombine.foundation.errors import InputError
from recombine.sweeps import (
    Experiment,
    Finished,
    FinishedRun,
    Record,
    compare_scores,
    find_experiment,
    list_references,
)
from recombine.tasks.base import Metric
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.training.config import default_run
from recombine.training.directory import RunDirectory, hash_config
from recombine.training.intervals import SeedScore
from recombine_papers import EXPERIMENTS
from recombine_papers.claims import Close, Fall, Lead, Level, tabulate_claims
from recombine_papers.hypernetwork.fuzzy_logic import over_grid

OWN_EXPERIMENT = """
from dataclasses import replace
from recombine.recipes import Experiment, Record
from recombine.run import default_run

class Lengths(Experiment):
    name = "lengths"
    question = "Do more examples help?"
    metric = "r2"
    compared = "examples"

    def records(self, scale):
        for examples in (8, 16):
            run = default_run("fuzzy_logic", scale)
            task = replace(run.task, num_examples=examples, num_variables=3, held_out=0.5)
            model = replace(run.model, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2, num_layers=1)
            yield Record(settings={"examples": examples}, config=replace(run, task=task, model=model))

NOT_ONE = 3
"""


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_no_two_records_have_the_same_settings_and_seed(name, scale):
    records = list(EXPERIMENTS[name].records(scale))
    assert len({(record.key, record.seed) for record in records}) == len(records) == len({r.text for r in records})


def test_the_records_of_dropout_are_the_runs_that_are_being_trained():
    base: Any = default_run("fuzzy_logic", "paper")
    expected = set()
    for steps, seeds in ((20_000, range(3)), (50_000, [0])):
        for seed in seeds:
            for attention in ("softmax", "linear", "hyla"):
                for rate in (0.0, 0.1):
                    config = replace(
                        base,
                        task=replace(base.task, seed=seed),
                        model=replace(base.model, attention=attention, attention_dropout=rate),
                        training=replace(base.training, steps=steps, precision="bf16"),
                    )
                    expected.add(hash_config(config.identity))
    assert {hash_config(record.config.identity) for record in EXPERIMENTS["dropout"].records("paper")} == expected


def test_sraven_at_the_papers_size():
    records: list[Any] = list(EXPERIMENTS["sraven-paper"].records("paper"))
    assert {record.config.training.steps for record in records} == {78_125}
    assert {record.config.task.num_features for record in records} == {4}
    assert {record.config.model.attention_dropout for record in records} == {0.0, 0.1}


def test_every_claim_is_about_records_that_exist():
    for name in ("dropout", "sraven-paper", "figure-2c", "table-a1", "depth", "heads", "features", "held-out"):
        experiment = EXPERIMENTS[name]
        records = list(experiment.records("paper"))
        assert experiment.claims
        for claim in experiment.claims:
            variants = [value for value in vars(claim).values() if isinstance(value, dict)]
            assert variants
            for variant in variants:
                assert any(variant.items() <= record.settings.items() for record in records), claim.text


def test_the_grid_of_table_a3():
    (record, *_) = EXPERIMENTS["fuzzy-logic"].records("paper")
    points = list(over_grid(record))
    assert [(point.config.training.learning_rate, point.config.training.weight_decay) for point in points] == [
        (1e-3, 0.03),
        (1e-3, 0.1),
        (3e-3, 0.03),
        (3e-3, 0.1),
    ]
    assert points[0].settings == {"attention": "softmax", "learning_rate": 1e-3, "weight_decay": 0.03}
    (record, *_) = EXPERIMENTS["sraven"].records("paper")
    assert len({point.text for point in over_grid(record)}) == 8
    with pytest.raises(InputError, match="unknown task with a grid 'hyperteacher'"):
        list(over_grid(replace(record, config=default_run("hyperteacher", "tiny"))))


def options(**choices):
    return ReproduceOptions(name="", **choices)


def test_records_can_be_filtered_and_changed():
    records = list(EXPERIMENTS["in-context"].records("small"))
    chosen = choose_records(records, options(only=("model=vanilla,bottleneck-mlp", "trunk=softmax", "seed=1")))
    assert {record.settings["model"] for record in chosen} == {"vanilla", "bottleneck_mlp"}
    assert {(record.settings["trunk"], record.seed) for record in chosen} == {("softmax", 1)}
    (short,) = choose_records(chosen[:1], options(steps=7))
    assert short.config.training.steps == 7
    assert [record.seed for record in choose_records(chosen[:1], options(seeds=(4, 5)))] == [4, 5]
    dropout = list(EXPERIMENTS["dropout"].records("paper"))
    assert len(choose_records(dropout, options(steps=9))) == 18  # both budgets become one
    assert len(filter_records(dropout, "dropout=0.10")) == 12
    held_out = list(EXPERIMENTS["held-out"].records("tiny"))
    assert len(filter_records(held_out, "held-out=0.5")) == len(filter_records(held_out, "held_out=.5")) == 9


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "vanilla"], "--only 'vanilla': expected NAME=VALUE, such as seed=0"),
        (["--only", "size=3"], "unknown setting 'size': expected one of setting, model, trunk, seed"),
        (["--only", "model=gru"], "unknown value of model 'gru': expected one of vanilla, bottleneck, bottleneck mlp"),
        (["--steps", "0"], "steps is 0: expected a whole number of at least 1"),
    ],
)
def test_bad_filters_are_one_line(flags, message, capsys, tmp_path):
    assert run_verb(["reproduce", "in-context", "--out", str(tmp_path / "runs"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_experiment_from_a_file(tmp_path, capsys, monkeypatch):
    (tmp_path / "own.py").write_text(OWN_EXPERIMENT)
    monkeypatch.setattr("recombine.tasks.fuzzy_logic.FuzzyLogic.evaluation_instances", 200)
    command = ["reproduce", f"{tmp_path}/own.py:Lengths", "--steps", "5", "--seeds", "0", "1", "--out", str(tmp_path)]
    assert run_verb([*command, "--scale", "tiny", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [(run["settings"]["examples"], run["seed"]) for run in value["runs"]] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    scores, references = value["tables"].values()
    values = scores[0]["R²"]["values"]
    assert scores[0]["R²"]["value"] == pytest.approx(sum(values) / 2)
    assert len(values) == scores[0]["seeds"] == 2
    assert {"chance", "ceiling"} <= {row["strategy"] for row in references}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.py:NOT_ONE", "is not an experiment: expected a subclass of recombine.sweeps.Experiment"),
        ("own.py:Nothing", "has no 'Nothing'"),
        ("nowhere.py:Lengths", "is not a file"),
        ("everything", "unknown experiment 'everything': expected one of dropout"),
        ("recombine.sweeps:Experiment", "cannot be created"),
    ],
)
def test_what_is_no_experiment(name, message, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN_EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        find_experiment(name)


class Made(Experiment):
    """An experiment whose results are written by hand."""

    name, question, metric, compared = "made", "?", "r2", "attention"

    def records(self, scale):
        return []


def finished_run(folder, attention, seed, scores):
    config = default_run("fuzzy_logic", "tiny")
    record = Record(settings={"attention": attention}, config=config).with_seed(seed)
    result = {
        "steps": 10,
        "seconds": 60,
        "scores": {
            split: {"r2": {"value": sum(scores) / len(scores), "low": 0.0, "high": 1.0, "chance": 0.1, "ceiling": 0.9}}
            for split in ("test", "ood")
        },
        "composition_sums": {split: {"r2": [list(scores), [1.0] * len(scores)]} for split in ("test", "ood")},
    }
    run = RunDirectory(folder / f"{attention}-{seed}")
    run.path.mkdir()
    run.write_json("result.json", result)
    return FinishedRun(record, run)


def made_runs(folder, lead):
    """Two seeds of two attentions; the second is better by a fixed amount."""
    runs = []
    for seed in (0, 1):
        scores = [0.2 + 0.1 * seed, 0.3, 0.4, 0.6]
        runs += [
            finished_run(folder, "softmax", seed, scores),
            finished_run(folder, "hyla", seed, [score + lead for score in scores]),
        ]
    return Finished(tuple(runs))


def test_the_comparison_pairs_seeds(tmp_path):
    finished = made_runs(tmp_path, 0.25)
    table = compare_scores(Made(), finished)
    softmax, hyla = table.as_dicts()
    assert (softmax["attention"], softmax["seeds"], hyla["minutes"]) == ("softmax", 2, 2)
    assert [hyla["above softmax"][name] for name in ("value", "low", "high")] == pytest.approx([0.25] * 3)
    assert "the values of the two seeds" in table.note
    assert list_references(Made(), finished).as_dicts() == [
        {"strategy": "chance", "R²": {"value": 0.1}},
        {"strategy": "ceiling", "R²": {"value": 0.9}},
    ]


HYLA, SOFTMAX = {"attention": "hyla"}, {"attention": "softmax"}
WORDS: dict[str, Any] = {"text": "?", "source": "?"}


@pytest.mark.parametrize(
    ("claim", "lead", "verdict"),
    [
        (Lead(better=HYLA, worse=SOFTMAX, by=0.1, **WORDS), 0.2, "seen"),
        (Lead(better=HYLA, worse=SOFTMAX, by=0.1, **WORDS), 0.05, "seen in part"),
        (Lead(better=HYLA, worse=SOFTMAX, by=0.1, **WORDS), 0.0, "not seen"),
        (Lead(better=HYLA, worse=SOFTMAX, by=0.1, **WORDS), -0.1, "refuted"),
        (Lead(better=HYLA, worse={"attention": "linear"}, by=0.1, **WORDS), 0.2, "not run"),
        (Close(first=HYLA, second=SOFTMAX, within=0.1, **WORDS), 0.05, "seen"),
        (Close(first=HYLA, second=SOFTMAX, within=0.1, **WORDS), 0.2, "refuted"),
        (Level(of=HYLA, low=0.45, **WORDS), 0.1, "seen in part"),
        (Level(of=HYLA, high=0.45, **WORDS), 0.1, "not seen"),
        (Level(of=HYLA, high=-5.0, **WORDS), 0.1, "refuted"),
        (Fall(higher=HYLA, lower=SOFTMAX, by=0.1, **WORDS), 50, "seen"),
    ],
)
def test_verdicts(claim, lead, verdict, tmp_path):
    (row,) = tabulate_claims([claim], Made(), made_runs(tmp_path, lead)).as_dicts()
    assert row["verdict"] == verdict
    assert (row["number"] is None) == (verdict == "not run")


def test_a_lead_in_a_loss_is_a_lower_number(tmp_path, monkeypatch):
    monkeypatch.setattr(FuzzyLogic, "metric_info", {"r2": Metric(title="loss", higher_is_better=False)})
    runs = made_runs(tmp_path, -0.2)  # HYLA has the lower numbers
    rows = [Lead(better=HYLA, worse=SOFTMAX, by=0.1, **WORDS), Lead(better=SOFTMAX, worse=HYLA, by=0.1, **WORDS)]
    assert [row["verdict"] for row in tabulate_claims(rows, Made(), runs).as_dicts()] == ["seen", "refuted"]
    assert rows[0].measure(Made(), runs).value == pytest.approx(0.2)


def test_a_claim_may_have_a_metric_of_its_own(tmp_path):
    class Other(Made):
        metric = "unknown"

    runs = made_runs(tmp_path, 0.2)
    for claim in (
        Lead(better=HYLA, worse=SOFTMAX, by=0.1, metric="r2", **WORDS),
        Close(first=HYLA, second=SOFTMAX, within=0.3, metric="r2", **WORDS),
        Level(of=HYLA, low=0.4, metric="r2", **WORDS),
        Fall(higher=HYLA, lower=SOFTMAX, by=0.1, metric="r2", **WORDS),
    ):
        assert claim.measure(Other(), runs).value > 0.15


def test_a_lead_whose_interval_includes_zero_is_seen_in_part():
    claim = Lead(better=HYLA, worse=SOFTMAX, by=0.1, **WORDS)
    assert claim.judge(SeedScore(value=0.2, low=-0.1, high=0.5, values=(0.2,))) == "seen in part"
    assert claim.bound == "difference of at least 0.1"
    assert Level(of=HYLA, low=0.1, high=0.3, **WORDS).bound == "0.1 to 0.3"
