"""The experiments on sequence teachers: which runs they have, what their tables say, and the command line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recombine.cli.main import run as run_verb
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.training.config import TrainingConfig, default_run
from recombine.training.directory import RunDirectory
from recombine_papers import EXPERIMENTS
from recombine_papers.length import runs as length

NAMES = [name for name in EXPERIMENTS if name.startswith("length-") and name != "length-theory"]


def test_defaults_are_the_papers():
    for student in ("deep_set", "attention", "ssm", "rnn"):
        run: Any = default_run("sequence_teacher", "paper", student)
        assert isinstance(run.task, SequenceTeacher)
        assert (run.task.teacher, run.model.kind) == (student, student)
        assert (run.task.token_dim, run.task.teacher_dim, run.task.target_dim, run.model.hidden_dim) == (20,) * 4
        assert (run.task.min_length, run.task.max_length, run.task.longest) == (2, 10, 100)
        training = run.training
        assert (training.batch_size, training.learning_rate, training.weight_decay) == (256, 1e-3, 0.01)
        assert training.beta2 == 0.95


def test_chain_of_thought_is_the_only_difference_between_pairs():
    configs: dict[Any, Any] = {
        (record.key, record.seed): record.config for record in EXPERIMENTS["length-capacity"].records("paper")
    }
    for (key, seed), config in configs.items():
        settings = dict(key)
        if settings["supervision"] == "outputs only":
            other = configs[tuple((settings | {"supervision": "chain of thought"}).items()), seed]
            assert other == replace(config, task=replace(config.task, chain_of_thought=1.0))


def shrink(records, num_runs: int):
    """The first records of an experiment, as small as can be."""
    training = TrainingConfig(steps=10, batch_size=8, warmup_steps=0)
    sizes = {"token_dim": 3, "teacher_dim": 4, "target_dim": 2}

    def shrink_record(record):
        task, model = replace(record.config.task, **sizes), replace(record.config.model, hidden_dim=4)
        return replace(record, config=replace(record.config, task=task, model=model, training=training))

    return lambda scale: [shrink_record(record) for record in list(records(scale))[:num_runs]]


@pytest.mark.parametrize("name", NAMES)
def test_reproduce_ends_with_tables(name, tmp_path, capsys, monkeypatch):
    experiment = EXPERIMENTS[name]
    monkeypatch.setattr(experiment, "records", shrink(experiment.records, 2))
    monkeypatch.setattr(SequenceTeacher, "evaluation_instances", 200)
    monkeypatch.setattr("recombine.tasks.sequences.teacher.NUM_MEAN_SEQUENCES", 512)
    monkeypatch.setattr("recombine_papers.length.runs.NUM_SEQUENCES", 50)
    arguments = ["reproduce", name, "--scale", "tiny", "--out", str(tmp_path)]
    figures = ["--figures", str(tmp_path / "figures")] if experiment.has_figures else []
    assert run_verb([*arguments, *figures, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    shown_tables = shown["tables"]
    for figure in shown.get("figures", []):
        assert Path(figure).read_bytes().startswith(b"\x89PNG")
    assert len(shown.get("figures", [])) == (0 if name in ("length-composition", "length-training") else 1)
    claims, table, references = shown_tables.values()
    assert len(claims) == len(experiment.claims)
    assert len(table) == 2
    assert references
    if name == "length-generalization":
        assert list(table[0])[:4] == ["student", "rate", "seeds", "error, T = 10"]
        assert (table[0]["student"], table[0]["rate"]) == ("deep set", 1e-3)
        assert table[0]["ratio, T = 100"]["value"] > 0
        assert table[0]["R² after"]["value"] <= 1
        assert run_verb([*arguments, "--quiet", "--report", str(tmp_path / "report.html")]) == 0
        assert "R² after" in capsys.readouterr().out
        assert "squared error" in (tmp_path / "report.html").read_text()


def test_a_teacher_whose_outputs_do_not_vary_leaves_no_ratio(monkeypatch):
    """A product of many features can be the same number for every sequence; no constant errs then."""
    numbers = {"loss": [0.5] * 100, "constant_loss": [1.0] * 99 + [0.0], "r2": {"transfer": [0.9] * 100}}
    before = numbers | {"loss": [0.75] * 100, "r2": {"transfer": [0.1] * 100}}
    monkeypatch.setattr(length, "identify_run", lambda path, **_: {"trained": numbers, "untrained": before})
    measured = length.read_lengths(RunDirectory(Path("run")), "cpu")
    assert "log10_ratio" not in measured
    assert "ratio_100" not in measured
    assert (measured["ratio_50"], measured["error_100"]) == (0.5, 0.5)
    assert (measured["identified"], measured["identified_before"], measured["missed_50"]) == pytest.approx(
        (0.9, 0.1, 0.1)
    )
    assert measured["log10_error"] == pytest.approx(-0.301, abs=1e-3)


def test_a_student_without_any_error_has_a_logarithm(monkeypatch, tmp_path):
    flat: dict[str, Any] = {"loss": [0.0] * 100, "constant_loss": [1.0] * 100, "r2": {}}
    monkeypatch.setattr(length, "identify_run", lambda path, **_: {"trained": flat, "untrained": flat})
    numbers = length.read_lengths(RunDirectory(tmp_path), "cpu")
    assert (numbers["log10_error"], numbers["log10_ratio"]) == (-18, -18)
