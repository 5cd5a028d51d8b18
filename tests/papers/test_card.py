"""The card of claims: stored results, rows and statements, the pages and the command."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine_papers import EXPERIMENTS
from recombine_papers.card import build_card, combine_verdicts, list_statements, tabulate_card
from recombine_papers.pages import (
    BEGIN,
    END,
    RESULTS_BLOCK,
    format_page,
    summarise_card,
    update_page,
)
from recombine_papers.questions import draw_questions, judge, tabulate_questions
from recombine_papers.stored import (
    copy_shared_runs,
    read_lines,
    read_results,
    shorten_numbers,
)
from recombine_papers.verb import draw_figures
from stored_runs import NARROW, WIDE, Widths, write_world

ROOT = Path(__file__).parents[2]


def test_the_card_is_made_of_stored_results(tmp_path):
    write_world(tmp_path)
    (row,) = build_card([Widths()], tmp_path)
    assert (row.verdict, row.scale, row.missing) == ("seen", "tiny", 0)
    assert row.core_hours == pytest.approx(2.0)  # four runs of half an hour
    assert "wide beats narrow" in str(tabulate_card([row]).as_text())
    write_world(tmp_path, wide=0.3)  # the same runs with other numbers replace the old ones
    assert build_card([Widths()], tmp_path)[0].verdict == "not reached at our size"


class Settings(Widths):
    """One statement in two settings; the first has not been run."""

    claims = tuple(
        replace(Widths.claims[0], text="wide beats narrow", where=where, better={"width": width})
        for where, width in (("never run", 64), ("run", 512))
    )


def test_a_row_per_setting_sorted_by_verdict_with_its_runs_and_command(tmp_path, monkeypatch):
    write_world(tmp_path)
    rows = build_card([Settings()], tmp_path)
    (statement,) = list_statements(rows)
    assert (statement.first.claim.where, [row.claim.where for row in statement.further]) == ("run", ["never run"])
    seen, missing = [line for line in format_page(rows, tmp_path).splitlines() if "wide beats narrow (us)" in line]
    assert seen.startswith("| wide beats narrow (us)<br>*run* | **seen** | 0.400")
    assert (
        "<br>2 seeds, 4 compositions<br>p = 0 (Holm) | 0.400<br>0.000 trained | 0.300 | difference ≥ 0.1<br>*blind* |"
        in seen
    )
    runs = "[4 runs](../results/miniature-tiny.jsonl), 2.00 core-hours"
    assert seen.endswith(f"| {runs}<br>[`recombine reproduce miniature --scale tiny`](#miniature) |")
    assert missing == (
        "| wide beats narrow (us)<br>*never run* | not run | – | – | 0.300 | difference ≥ 0.1<br>*blind* | [miniature](#miniature) |"
    )


@pytest.mark.parametrize(
    ("verdicts", "combined"),
    [
        (["not run", "not run"], "not run"),
        (["seen", "not run"], "seen"),
        (["seen", "refuted"], "seen in some settings"),
        (["seen", "preliminary", "not run"], "seen"),
        (["preliminary", "not run"], "preliminary"),
        (["not seen", "seen in part"], "not seen"),
        (["not seen", "refuted"], "not seen"),
        (["refuted", "refuted"], "refuted"),
    ],
)
def test_one_verdict_for_several_settings(verdicts, combined):
    assert combine_verdicts(verdicts) == combined


class Repeated(Widths):
    """Another experiment of the same paper with the same statement, which fails there, and one that holds."""

    name = "repeated"
    claims = (replace(Widths.claims[0], where="again", better=NARROW, worse=WIDE),)


def test_settings_of_two_experiments_are_one_statement(tmp_path, monkeypatch):
    write_world(tmp_path)
    (tmp_path / "repeated-tiny.jsonl").write_bytes((tmp_path / "miniature-tiny.jsonl").read_bytes())
    rows = build_card([Settings(), Repeated()], tmp_path)
    (statement,) = list_statements(rows)
    assert [row.verdict for row in statement.rows] == ["seen", "not run", "not reached at our size"]
    assert judge(statement) == "in 1 of 2 settings"
    assert judge(list_statements(rows[:1])[0]) == "not run"
    assert judge(list_statements(rows[1:2])[0]) == "**yes**"
    assert summarise_card(rows, tmp_path).endswith(
        "1 claim about trained networks, run in 2 settings (1 more not run): 1 seen in some settings. "
        "Of 2 rows that were run, 2 are blind and 0 known."
    )


def test_results_of_a_smaller_scale_than_the_default_decide_nothing(tmp_path, monkeypatch):
    write_world(tmp_path)
    assert Widths().judged_scales == ("tiny", "small", "paper")
    assert EXPERIMENTS["scale-width"].judged_scales == ("small", "paper")
    monkeypatch.setattr(Widths, "default_scale", "small")
    (row,) = build_card([Widths()], tmp_path)
    assert (row.verdict, row.scale) == ("not run", "small")


def test_a_claim_about_settings_that_no_run_has_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Widths, "claims", (replace(Widths.claims[0], better={"width": 513}),))
    with pytest.raises(InputError, match=r"claim 'wide beats narrow' .* is about {'width': 513}: no run has these"):
        build_card([Widths()], tmp_path)


class Shared(Widths):
    """Another experiment with two of the runs, under another name of the setting."""

    name = "shared"

    def records(self, scale):
        wide = (record for record in super().records(scale) if record.settings["width"] == 512)
        return (replace(record, settings={"units": 512}) for record in wide)


class Measured(Shared):
    name = "measured"

    def measures(self, run, device):
        return {"z": 1.0}


def test_runs_that_are_stored_for_another_experiment_are_used(tmp_path):
    write_world(tmp_path, measured=lambda record: {"z": 0.5})
    experiments = (Widths(), Shared(), Measured())
    assert [path.name for path in copy_shared_runs(experiments, tmp_path)] == ["shared-tiny.jsonl"]
    lines = read_lines(
        tmp_path / "shared-tiny.jsonl"
    )  # none for `Measured`: what it measures in networks is not stored
    assert [(line["settings"], line["seed"], line["measured"]) for line in lines] == [
        ({"units": 512}, 0, {}),
        ({"units": 512}, 1, {}),
    ]
    assert not copy_shared_runs(experiments, tmp_path)
    assert [run.score("ood", "r2_pooled") for run in read_results(tmp_path, Shared(), "tiny").runs] == [0.9, 0.9]
    path = tmp_path / "shared-tiny.jsonl"  # a copy of an older evaluation does not stand in the way of the current one
    path.write_text(path.read_text().replace('"evaluation": ', '"evaluation": 99'))
    (tmp_path / "other.jsonl").write_text("{}\n")  # not ours
    assert copy_shared_runs(experiments, tmp_path) == [path]
    assert len(read_results(tmp_path, Shared(), "tiny").runs) == 2


def test_nothing_stale_is_used(tmp_path):
    write_world(tmp_path)
    path = tmp_path / "miniature-tiny.jsonl"
    text = path.read_text()
    path.write_text(text.replace(read_lines(path)[0]["hash"], "0" * 12))
    assert len(read_results(tmp_path, Widths(), "tiny").runs) == 3
    path.write_text(text.replace('"versions": {"evaluation": ', '"versions": {"evaluation": 99'))
    assert not read_results(tmp_path, Widths(), "tiny").runs
    assert build_card([Widths()], tmp_path)[0].verdict == "not run"
    path.write_text("[]\n")
    with pytest.raises(InputError, match=r"cannot be read .*expected results that `reproduce claims` wrote"):
        build_card([Widths()], tmp_path)


def test_numbers_are_shortened_and_stay_json():
    assert shorten_numbers({"a": [1 / 3, float("nan"), 2, "x"]}) == {"a": [0.3333333, None, 2, "x"]}


def test_the_page_and_the_short_form(tmp_path):
    write_world(tmp_path)
    experiment = EXPERIMENTS["scale-width"]
    rows = build_card([experiment], tmp_path)
    page = format_page(rows, tmp_path)
    assert experiment.paper == "Scaling can lead to compositional generalization (arXiv 2507.07207)"
    assert f"## {experiment.paper}" in page
    assert "`recombine reproduce scale-width --scale small`" in page
    assert "| claim | verdict | bound | runs |" in page  # columns in which no row has anything are left out
    assert page.count("| not run |") == 3  # one row per statement
    short = summarise_card(rows, tmp_path)
    assert "|" not in short  # nothing to show yet
    assert short.endswith("3 claims about trained networks, run in 0 settings (3 more not run): 3 not run.")
    text = update_page(f"before\n{BEGIN}\nold\n{END}\nafter", rows, tmp_path, Path("README.md"), EXPERIMENTS)
    assert text == f"before\n{BEGIN}\n{short}\n{END}\nafter"
    with pytest.raises(InputError, match="has no place for the claims"):
        update_page(f"{BEGIN} and no end", rows, tmp_path, Path("README.md"), EXPERIMENTS)


def test_the_command(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    command = ["reproduce", "claims", "scale-width", "--out", str(tmp_path / "none"), "--json", "--results"]
    assert run_verb([*command, str(tmp_path), "--page", str(tmp_path / "claims.md")]) == 0
    value = json.loads(capsys.readouterr().out)
    assert {claim["verdict"] for claim in value["claims"]} == {"not run"}
    assert (tmp_path / "claims.md").read_text().startswith("# Claims")
    other = tmp_path / "other.md"
    other.write_text("# Another page\n")
    assert run_verb([*command, str(tmp_path), "--page", str(other)]) == 2
    assert other.read_text() == "# Another page\n"
    for text in (b"# Another page\n", b"\xff\xfe"):  # a folder that is not one of results
        (tmp_path / "docs" / "README.md").write_bytes(text)
        assert run_verb([*command, str(tmp_path / "docs")]) == 2
        assert [path.read_bytes() for path in (tmp_path / "docs").iterdir()] == [text]


def test_pages_of_the_documentation_are_those_that_the_results_give(unchecked):  # types are checked by the others
    rows = build_card(EXPERIMENTS.values(), ROOT / "results")
    assert (ROOT / "docs" / "claims.md").read_text() == format_page(rows, ROOT / "results")
    pages = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.name != "claims.md"]
    marked = [page for page in pages if BEGIN in page.read_text() or RESULTS_BLOCK.search(page.read_text())]
    assert ROOT / "README.md" in marked
    for page in marked:
        assert update_page(page.read_text(), rows, ROOT / "results", page, EXPERIMENTS) == page.read_text(), page


def test_a_question_has_a_line_and_a_dot_per_seed(tmp_path):
    """From the stored results: in-context tasks, two models with two supports."""
    rows = build_card([EXPERIMENTS["in-context"], EXPERIMENTS["in-context-supports"]], ROOT / "results")
    (line,) = tabulate_questions(rows, ROOT / "results")
    assert "In context" in line["question"]
    assert line["size and seeds"].endswith("8k steps<br>3 seeds; paper larger")
    assert line["held out"].count("<br>") == line["trained"].count("<br>") == 3
    finished = EXPERIMENTS["in-context-supports"].read(ROOT / "results", "small")
    vanilla = finished.find(model="vanilla", trained=6, modules="shared", trunk="softmax")
    assert f"{fmean(vanilla.scores('ood', 'r2_pooled')):.2f}\u00a0vanilla,\u00a06" in line["held out"]
    assert line["reproduced?"].startswith("ahead: ")
    (path,) = draw_questions(rows, ROOT / "results", tmp_path)
    svg = path.read_text()
    dots = sum(len(panel.split("<use")) - 1 for panel in re.findall(r"<g clip-path.*?</g>", svg, flags=re.DOTALL))
    assert dots == 12
    assert "@media (prefers-color-scheme:dark)" in svg
    assert "#0072b2" not in svg.partition("</style>")[2]  # every colour follows the scheme
    assert not draw_questions([], ROOT / "results", tmp_path)


@pytest.mark.slow  # the pages are also compared by the test below
def test_numbers_are_recomputed_and_pages_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results, page = tmp_path / "results", tmp_path / "claims.md"
    results.mkdir()
    name = "scale-compositions-small.jsonl"
    (results / name).write_bytes((ROOT / "results" / name).read_bytes())
    command = ["reproduce", "claims", "scale-compositions", "--page", "claims.md"]
    assert run_verb(command) == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run_verb([*command, "--check"]) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    capsys.readouterr()
    page.write_text(page.read_text().replace("0.147", "0.148"))
    assert run_verb([*command, "--check"]) == 2
    assert "claims.md, line " in capsys.readouterr().err
    lines = read_lines(results / name)
    lines[3]["result"]["scores"]["ood"]["r2_pooled"]["value"] += 0.001
    (results / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_verb([*command, "--check"]) == 2
    assert f"{lines[3]['hash']} has r2_pooled" in capsys.readouterr().err


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


@pytest.mark.slow
def test_titles_of_papers_do_not_need_docstrings():
    code = "from recombine_papers.registry import EXPERIMENTS, PAPERS; print(EXPERIMENTS['scale-width'].paper, len(PAPERS))"
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


@pytest.mark.slow
def test_every_figure_is_drawn_from_stored_results_alone(tmp_path, unchecked):
    drawn = {path.name for path in draw_figures(ROOT / "results", tmp_path, EXPERIMENTS)}
    assert drawn == {path.name for path in tmp_path.iterdir()} > {"dropout_curves.png", "in_context_supports.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
