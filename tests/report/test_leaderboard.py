"""Lists of runs, paired differences between two of them, and the page that ranks them."""

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest

import recombine
from recombine.cli.main import run as run_verb
from recombine.report.leaderboard import make_boards, write_leaderboard
from recombine.training.config import default_run
from recombine.training.intervals import compare
from recombine.training.run import train_run

BASE: Any = default_run("hyperteacher", "tiny")


def train(folder, *, width=16, steps=2, seed=0):
    config = replace(
        BASE,
        task=replace(BASE.task, seed=seed),
        model=replace(BASE.model, hidden_dim=width),
        training=replace(BASE.training, steps=steps),
    )
    return train_run(config, out=folder, evaluation_instances=40)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    first, second = train(folder, width=16), train(folder, width=32)
    unfinished = shutil.copytree(first.path, folder / "unfinished")
    (unfinished / "result.json").unlink()
    return folder, first, second


def edit(run, **changes):
    run.write_json("result.json", run.read_json("result.json") | changes)


def copy(run, folder):
    return recombine.RunDirectory.open(shutil.copytree(run.path, folder / run.path.name))


def test_runs_are_listed_with_their_state_and_scores(runs, capsys):
    folder, first, _ = runs
    assert run_verb(["runs", str(folder), "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert set(rows) == {path.name for path in folder.iterdir()}
    row = rows[first.path.name]
    assert (row["task"], row["model"], row["state"], row["steps"]) == ("hyperteacher", "mlp-2x16", "finished", 2)
    assert row["ood"] == first.read_json("result.json")["scores"]["ood"]["r2"]["value"]
    assert rows["unfinished"]["state"] == "stopped at step 2"
    assert run_verb(["runs", str(folder)]) == 0
    assert "3 runs" in capsys.readouterr().out


def test_compare_prints_the_paired_difference(runs, capsys):
    _, first, second = runs
    assert run_verb(["compare", str(first.path), str(second.path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [each["model.hidden_dim"] for each in value["settings"]] == [16, 32]
    row = value["differences"]["ood"]["r2"]
    sums = [run.read_json("result.json")["composition_sums"]["ood"]["r2"] for run in (first, second)]
    expected = compare(*sums)
    assert row["difference"] == {"value": expected.value, "low": expected.low, "high": expected.high}
    assert row["difference"]["value"] == pytest.approx(row["first"] - row["second"])
    assert (row["better"] is not None) == expected.is_significant
    assert run_verb(["compare", str(first.path), str(second.path)]) == 0
    assert "first minus second" in capsys.readouterr().out


def test_only_runs_on_the_same_instances_are_compared(runs, tmp_path, capsys):
    folder, first, _ = runs
    other = copy(first, tmp_path)
    edit(other, split_sha256="0" * 64)
    assert run_verb(["compare", str(first.path), str(other.path)]) == 2
    assert "expected two runs that were scored on the same instances" in capsys.readouterr().err
    assert run_verb(["compare", str(first.path), str(folder / "unfinished")]) == 2
    assert "has no result.json: expected a finished run" in capsys.readouterr().err


def on_another_machine(run, folder, factor=1 + 1e-7):
    """A copy of a run whose denominators differ as those of another processor do, or by another factor."""
    other = copy(run, folder)
    sums = other.read_json("result.json")["composition_sums"]
    for metrics in sums.values():
        for metric, (numerators, denominators) in metrics.items():
            metrics[metric] = [[number * factor for number in sums] for sums in (numerators, denominators)]
    edit(other, composition_sums=sums)
    return other


def test_runs_of_two_machines_are_compared_and_ranked(runs, tmp_path, capsys):
    _, first, second = runs
    other = on_another_machine(second, tmp_path)
    assert run_verb(["compare", str(first.path), str(other.path), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["differences"]["ood"]["r2"]["difference"]
    assert run_verb(["compare", str(first.path), str(second.path), "--json"]) == 0
    assert value == pytest.approx(json.loads(capsys.readouterr().out)["differences"]["ood"]["r2"]["difference"])
    (board,) = make_boards([first, other])
    assert board.tied == make_boards([first, second])[0].tied


def test_a_pair_that_cannot_be_compared_does_not_stop_the_leaderboard(runs, tmp_path, capsys):
    _, first, second = runs
    other = on_another_machine(second, tmp_path, factor=2)
    assert run_verb(["compare", str(first.path), str(other.path)]) == 2
    assert "are not of the same instances" in capsys.readouterr().err
    (board,) = make_boards([first, other])
    assert sorted(map(str, board.tied)) == ["None", "True"]
    page = tmp_path / "leaderboard.html"
    assert run_verb(["leaderboard", str(tmp_path), str(first.path.parent), "-o", str(page)]) == 0
    assert "scored on other instances than the best" in page.read_text()


def test_the_page_ranks_finished_runs(runs, tmp_path, capsys):
    folder, first, _ = runs
    page = tmp_path / "leaderboard.html"
    assert run_verb(["leaderboard", str(folder), "-o", str(page), "--json"]) == 0
    (board,) = json.loads(capsys.readouterr().out)["boards"]
    scores = [entry["ood"]["value"] for entry in board["entries"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    text = page.read_text()
    result = first.read_json("result.json")
    for shown in ("mlp-2x16", "mlp-2x32", result["split_sha256"], f"{result['num_parameters']:,}", "2 steps of"):
        assert shown in text
    assert "http" not in text.replace("http-equiv", "")
    assert run_verb(["leaderboard", str(folder), "-o", str(page)]) == 0
    assert "(2 runs on 1 board)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "changes",
    [
        {"split_sha256": "0" * 64},
        {"versions": {"task": 99, "model": 1, "training": 1, "evaluation": 2}},
        {"evaluation_instances": 41},
    ],
)
def test_other_splits_versions_and_instances_get_another_board(runs, tmp_path, changes):
    _, first, second = runs
    other = copy(second, tmp_path)
    assert len(make_boards([first, other])) == 1
    edit(other, **changes)
    assert len(make_boards([first, other])) == 2


def test_other_budgets_and_seeds_get_another_board(runs, tmp_path):
    _, first, second = runs
    others = [train(tmp_path, width=32, steps=3), train(tmp_path, width=32, seed=1)]
    boards = make_boards([first, second, *others, first])  # a run that is named twice counts once
    assert sorted(len(board.entries) for board in boards) == [1, 1, 2]
    page = tmp_path / "page.html"
    write_leaderboard([tmp_path], page, title="Boards")
    assert "Columns cannot be compared with each other" in page.read_text()


def test_a_leaderboard_needs_a_finished_run(tmp_path, capsys):
    assert run_verb(["leaderboard", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 2
    assert "has scores on test and ood: expected at least one" in capsys.readouterr().err


def test_the_page_opens_without_complaint(runs, tmp_path, browser):
    write_leaderboard([runs[0]], tmp_path / "page.html", title="<b>Title</b>")
    browser.open(tmp_path / "page.html")
    assert browser.run("document.querySelector('h1').textContent") == "<b>Title</b>"
    browser.run("document.getElementById('theme').click()")
    assert browser.run("document.documentElement.dataset.theme") in ("light", "dark")
    assert browser.find_troubles() == []
    assert browser.find_requests() == [(tmp_path / "page.html").as_uri()]
