"""Records, filters and tables of experiments; experiments from outside the package."""

import json
from typing import Any

import pytest

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.training.directory import hash_config
from recombine_papers import EXPERIMENTS
from recombine_papers.base import Finished, compare_scores, find_experiment, list_references
from recombine_papers.verb import ReproduceOptions, choose_records, filter_records
from stored_runs import Widths, stored_run

OWN_EXPERIMENT = """
from dataclasses import replace
from pathlib import Path

from recombine import Record, default_run
from recombine_papers import Exceeds, Lead, PaperExperiment

class Lengths(PaperExperiment):
    name = "lengths"
    question = "Do more examples help?"
    metric = "r2"
    compared = "examples"
    default_scale = "tiny"
    paper = "My paper (arXiv 2611.00001)"
    quantities = ("length",)
    claims = (
        Lead(text="more examples help", source="figure 1", by=2.0, paired=False,
             better={"examples": 16}, worse={"examples": 8}),
        Exceeds(text="longer sequences are longer", source="us", of={"examples": 16}, than={"examples": 8},
                quantity="length", by=1.0, per_seed=True),
    )

    def records(self, scale):
        for examples in (8, 16):
            run = default_run("fuzzy_logic", scale)
            task = replace(run.task, num_examples=examples, num_variables=3, held_out=0.5)
            model = replace(run.model, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2, num_layers=1)
            training = replace(run.training, steps=5, batch_size=8)
            for seed in (0, 1):
                yield Record(settings={"examples": examples}, config=replace(run, task=task, model=model,
                             training=training)).with_seed(seed)

    def measures(self, run, device):
        return {"length": float(run.config["task"]["num_examples"])}

    def answer(self, finished):
        return f"{len(finished.runs)} runs say nothing."

    def figures(self, finished, folder):
        path = Path(folder) / "lengths.txt"
        path.write_text(" ".join(str(run.score("ood", "r2")) for run in finished.runs))
        return [path]

NOT_ONE = 3
"""


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_no_two_records_are_the_same(name, scale):
    records = list(EXPERIMENTS[name].records(scale))
    assert len({(record.key, record.seed) for record in records}) == len(records) == len({r.text for r in records})
    hashes = {hash_config(record.config.identity) for record in records}
    assert len(hashes) == len(records) or name == "scale-decodability"  # which shares runs between its parts


PLAIN = {"encoding": "identity", "width": "wide"}
SAME_RUNS: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
    *(("figure-5", scale, {}, "sraven-paper", {}) for scale in ("tiny", "small", "paper")),
    ("depth", "tiny", {"layers": 4}, "sraven-dropout", {"dropout": 0.0}),
    ("length-capacity", "paper", {"supervision": "limited capacity"}, "length-generalization", {}),
    ("length-training", "paper", {"tokens": 10}, "length-capacity", {}),
    ("scale-modules", "small", {"modules": 8, "active": 3}, "scale-encodings", PLAIN),
    ("scale-depth", "small", {"layers": 2}, "scale-encodings", PLAIN),
]


@pytest.mark.parametrize(("name", "scale", "wanted", "other", "of_other"), SAME_RUNS)
def test_runs_that_two_experiments_share_are_the_same(name, scale, wanted, other, of_other):
    """They are trained once, because the hash of a run depends on its configuration alone."""

    def hash_records(name, wanted):
        records = EXPERIMENTS[name].records(scale)
        return {hash_config(r.config.identity) for r in records if wanted.items() <= dict(r.settings).items()}

    found, others = hash_records(name, wanted), hash_records(other, of_other)
    assert found
    assert found == others or (not of_other and found < others)


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
    assert len(filter_records(dropout, "dropout=0.10")) == 18
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


def test_an_experiment_from_outside_does_all_that_an_own_one_does(tmp_path, capsys, monkeypatch):
    """Runs and tables; then stored results, verdicts, the page of claims, tables in other pages, figures and the index."""
    (tmp_path / "own.py").write_text(OWN_EXPERIMENT)
    monkeypatch.setattr("recombine.tasks.fuzzy_logic.FuzzyLogic.evaluation_instances", 200)
    own, out = f"{tmp_path}/own.py:Lengths", ["--out", str(tmp_path / "runs"), "--figures", str(tmp_path)]
    assert run_verb(["reproduce", own, *out, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [(run["settings"]["examples"], run["seed"]) for run in value["runs"]] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    claims, scores, references = value["tables"].values()
    assert [row["verdict"] for row in claims] == ["not seen", "seen"]
    values = scores[0]["R²"]["values"]
    assert scores[0]["R²"]["value"] == pytest.approx(sum(values) / 2)
    assert len(values) == scores[0]["seeds"] == 2
    assert {"chance", "ceiling"} <= {row["strategy"] for row in references}
    drawn = (tmp_path / "lengths.txt").read_text()

    page, table = tmp_path / "claims.md", tmp_path / "page.md"
    table.write_text("<!-- results: lengths tiny -->\n<!-- results: end -->\n")
    flags = ["--results", str(tmp_path / "results"), "--page", str(page), str(table)]
    assert run_verb(["reproduce", "claims", own, *out, *flags, "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in judged["claims"]] == ["not seen", "seen"]
    (tmp_path / "runs").rename(tmp_path / "gone")  # stored results are enough
    assert run_verb(["reproduce", "claims", own, *out, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == judged["claims"]
    assert "## My paper (arXiv 2611.00001)" in page.read_text()
    assert "**4 runs say nothing.**" in page.read_text()
    assert "| 16 | 2 |" in table.read_text()
    assert [float(score) for score in (tmp_path / "lengths.txt").read_text().split()] == pytest.approx(
        [float(score) for score in drawn.split()], rel=1e-6
    )
    assert "| `lengths-tiny.jsonl` | 4 | 0, 1 | 5 |" in (tmp_path / "results" / "README.md").read_text()
    assert run_verb(["reproduce", "claims", "recombine_papers.nowhere:X"]) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.py:NOT_ONE", "is not an experiment: expected a subclass of recombine_papers.Experiment"),
        ("own.py:Nothing", "has no 'Nothing'"),
        ("nowhere.py:Lengths", "is not a file"),
        ("everything", "unknown experiment 'everything': expected one of fuzzy-logic, sraven"),
        ("recombine_papers:Experiment", "cannot be created"),
    ],
)
def test_what_is_no_experiment(name, message, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN_EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        find_experiment(name)


class Compared(Widths):
    compared = "width"


def test_the_comparison_pairs_seeds():
    """The second attention is better by a fixed amount, whatever the seeds differ by."""
    runs = []
    for record in Widths().records("tiny"):
        score = 0.2 + 0.1 * record.seed + (0.25 if record.settings["width"] == 512 else 0)
        run = stored_run(record, {"test": 0.9, "ood": score})
        run.result["scores"]["ood"]["r2_pooled"] |= {"low": 0.0, "high": 1.0, "chance": 0.1, "ceiling": 0.9}
        runs.append(run)
    experiment, finished = Compared(), Finished(tuple(runs))
    table = compare_scores(experiment, finished)
    narrow, wide = table.as_dicts()
    assert (narrow["width"], narrow["seeds"], wide["minutes"]) == (16, 2, 60)
    assert wide["above width 16"]["value"] == pytest.approx(0.25)
    assert "the values of the two seeds" in table.note
    assert list_references(experiment, finished).as_dicts() == [
        {"strategy": "chance", "R² pooled": {"value": 0.1}},
        {"strategy": "ceiling", "R² pooled": {"value": 0.9}},
    ]
