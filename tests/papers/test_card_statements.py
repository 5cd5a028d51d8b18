"""Claims in several settings: one statement, one verdict, and which results decide."""

from dataclasses import replace

import pytest

from card_world import NARROW, WIDE, Widths, write_world
from recombine_papers import EXPERIMENTS
from recombine_papers.card import build_card, combine_verdicts, format_page, list_statements, summarise_card


class Settings(Widths):
    """One statement in two settings; the first has not been run."""

    claims = tuple(
        replace(Widths.claims[0], text="wide beats narrow", where=where, better={"width": width}, headline=True)
        for where, width in (("never run", 99), ("run", 512))
    )


def test_a_statement_is_shown_with_the_first_setting_that_was_run(tmp_path, monkeypatch):
    monkeypatch.setattr("recombine_papers.card.paper_of", lambda experiment: "a paper")
    write_world(tmp_path)
    rows = build_card([Settings()], tmp_path)
    (statement,) = list_statements(rows)
    assert (statement.first.claim.where, [row.claim.where for row in statement.further]) == ("run", ["never run"])
    page = format_page(rows)
    assert "| wide beats narrow (us)<br>*run* | **seen** | 0.400" in page
    assert "<br>2 seeds, 4 compositions |" in page
    assert "<summary>Other settings: 1 not run</summary>" in page
    folded = page.partition("<summary>")[2]
    assert "*wide beats narrow*\n\nNot run: never run." in folded
    (short,) = [line for line in summarise_card(rows).splitlines() if "wide" in line]
    assert short.startswith("| wide beats narrow<br>*run* | **seen**<br>1 setting not run | 0.400")
    assert short.endswith("| 2 | 0.300 | difference ≥ 0.1 |")


@pytest.mark.parametrize(
    ("verdicts", "combined"),
    [
        (["not run", "not run"], "not run"),
        (["seen", "not run"], "seen"),
        (["seen", "refuted"], "seen in part"),
        (["not seen", "seen in part"], "seen in part"),
        (["not seen", "refuted"], "not seen"),
        (["refuted", "refuted"], "refuted"),
    ],
)
def test_one_verdict_for_several_settings(verdicts, combined):
    assert combine_verdicts(verdicts) == combined


class Repeated(Widths):
    """Another experiment of the same paper with the same statement, which fails there, and one that holds."""

    name = "repeated"
    claims = (replace(Widths.claims[0], where="again", better=NARROW, worse=WIDE, headline=True),)


def test_settings_of_two_experiments_are_one_statement(tmp_path, monkeypatch):
    monkeypatch.setattr("recombine_papers.card.paper_of", lambda experiment: "a paper")
    write_world(tmp_path)
    (tmp_path / "repeated-tiny.jsonl").write_bytes((tmp_path / "miniature-tiny.jsonl").read_bytes())
    rows = build_card([Settings(), Repeated()], tmp_path)
    (statement,) = list_statements(rows)
    assert [row.verdict for row in statement.rows] == ["seen", "not run", "refuted"]
    short = summarise_card(rows)
    assert "| seen in part<br>2 settings: 1 seen, 1 refuted<br>1 setting not run | 0.400" in short
    assert "<br>settings: −0.400 … 0.400 |" in short
    assert short.endswith("1 claim about trained networks, run in 2 settings (1 more not run): 1 seen in part.")


def test_results_of_a_smaller_scale_than_the_default_decide_nothing(tmp_path, monkeypatch):
    write_world(tmp_path)
    assert Widths().judged_scales == ("tiny", "small", "paper")
    assert EXPERIMENTS["scale-width"].judged_scales == ("small", "paper")
    monkeypatch.setattr(Widths, "default_scale", "small")
    (row,) = build_card([Widths()], tmp_path)
    assert (row.verdict, row.scale) == ("not run", "small")
