"""The card of claims follows from stored results: the answer on dropout, figures, and a row that is computed by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recombine.cli.main import run as run_verb
from recombine.sweeps import Finished
from recombine.tasks import view as drawing
from recombine_papers import EXPERIMENTS
from recombine_papers.card import build_card, format_page
from recombine_papers.stored import read_results, write_results
from recombine_papers.verb import draw_figures
from spies import record_calls
from stored_runs import stored_line

ROOT = Path(__file__).parents[2]


def write_dropout(folder, leads):
    """Stored runs of `dropout` with these leads of HYLA, with and without dropout."""
    experiment = EXPERIMENTS["dropout"]
    lines = []
    for record in experiment.records("paper"):
        settings = record.settings
        if settings["steps"] == 20_000 and settings["attention"] != "linear" and settings["dropout"] in leads:
            score = 0.6 + (leads[settings["dropout"]] if settings["attention"] == "hyla" else 0.0)
            line = stored_line(record, {"test": 0.95, "ood": score, "unknown": 0.0}, metric="r2")
            line["result"]["scores"]["ood"]["r2"]["ceiling"] = 0.99
            points = (10_000, 20_000)
            line["curve"] = [{"step": step, "scores": {"test": {"r2": 0.9}, "ood": {"r2": 0.5}}} for step in points]
            lines.append(line)
    write_results(folder, experiment, "paper", lines)


@pytest.mark.parametrize(
    ("leads", "answer"),
    [
        ({0.1: 0.2, 0.0: 0.2}, "HYLA's lead does not need the dropout."),
        ({0.1: 0.2, 0.0: 0.0}, "HYLA leads only with the dropout."),
        ({0.1: 0.0, 0.0: 0.2}, "HYLA leads only without the dropout."),
        ({0.1: 0.0, 0.0: 0.0}, "HYLA does not lead here."),
        ({0.0: 0.2}, "HYLA leads."),
        ({0.0: -0.2}, "HYLA is behind."),
    ],
)
def test_the_question_on_dropout_is_answered_from_the_numbers(tmp_path, leads, answer):
    write_dropout(tmp_path, leads)
    experiment = EXPERIMENTS["dropout"]
    sentence = experiment.answer(read_results(tmp_path, experiment, "paper"))
    assert sentence.endswith(answer)
    assert all(f"scores {0.6 + lead:.2f} and softmax attention 0.60" in sentence for lead in leads.values())
    assert sentence.startswith("With attention dropout 0.1" if 0.1 in leads else "Without dropout")
    assert f"**{sentence}**" in format_page(build_card([experiment], tmp_path))
    assert experiment.answer(Finished(())) == ""


@pytest.mark.parametrize(
    ("leads", "titles"), [({0.1: 0.2, 0.0: 0.2}, ["dropout 0.1", "no dropout"]), ({0.0: 0.2}, ["no dropout"])]
)
def test_figures_are_drawn_from_stored_results_alone(tmp_path, monkeypatch, leads, titles):
    calls: list[Any] = []
    monkeypatch.setattr(drawing, "render_figure", record_calls(drawing.render_figure, calls))
    write_dropout(tmp_path, leads)
    (path,) = draw_figures(tmp_path, tmp_path / "figures", EXPERIMENTS)
    assert path.name == "dropout_curves.png"
    panels = calls[0][0].axes
    assert [axes.get_title() for axes in panels] == titles
    held_out = {
        line.get_label(): list(line.get_ydata()) for line in panels[-1].lines if "seed" in str(line.get_label())
    }
    assert held_out == {"softmax (3 seeds)": [0.5, 0.5], "HYLA (3 seeds)": [0.5, 0.5]}
    (ceiling,) = [line.get_ydata()[0] for line in panels[-1].lines if line.get_linestyle() == "--"]
    assert ceiling == pytest.approx(0.99)
    finals = [line.get_ydata()[0] for line in panels[-1].lines if line.get_marker() == "o"]
    assert finals == pytest.approx([0.6, 0.95, 0.8, 0.95])  # softmax, HYLA: held out, trained


def test_a_row_of_the_page_follows_from_the_stored_scores():
    """One cheap row by hand: the mean over seeds of the difference between two widths."""
    experiment = EXPERIMENTS["scale-width"]
    scores: dict[Any, list[float]] = {}
    for run in read_results(ROOT / "results", experiment, "small").runs:
        scores.setdefault(run.record.settings["width"], []).append(run.score("ood", "r2_pooled"))
    difference = sum(scores[512]) / len(scores[512]) - sum(scores[16]) / len(scores[16])
    (line,) = [
        line
        for line in (ROOT / "docs" / "claims.md").read_text().splitlines()
        if line.startswith("| wider networks recombine better (")
    ]
    assert line.split(" | ")[2].startswith(f"{difference:.3f}<br>(")
    assert f"{len(scores[512])} seeds" in line


def test_titles_of_papers_do_not_need_docstrings():
    code = "from recombine_papers.registry import HEADINGS; print(HEADINGS['scale-width'], len(set(HEADINGS.values())))"
    found = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "Scaling can lead to compositional generalization (arXiv 2507.07207) 4\n"


@pytest.mark.slow
def test_a_row_of_the_card_is_repeated_from_scratch(tmp_path, capsys):
    """`recombine reproduce scale-width`, the two widths of the claim: the same verdict and number as stored."""
    command = ["reproduce", "scale-width", "--scale", "small", "--only", "width=16,512", "--out", str(tmp_path)]
    assert run_verb([*command, "--jobs", "1", "--json"]) == 0
    (first, _) = json.loads(capsys.readouterr().out)["tables"]["Claims"]
    stored = next(
        row
        for row in build_card(EXPERIMENTS.values(), ROOT / "results")
        if row.claim.text == first["claim"].partition(" (")[0]
    )
    assert first["verdict"] == stored.verdict
    assert first["number"]["value"] == pytest.approx(stored.number.value, abs=0.01)
