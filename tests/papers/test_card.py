"""The card of claims: stored results, verdicts on measured numbers, the page and the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from card_world import NARROW, WIDE, Widths, build_world, write_world
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.sweeps import Finished, Record
from recombine.training.config import default_run
from recombine.training.intervals import score_values
from recombine.training.run import train_run
from recombine_papers import EXPERIMENTS
from recombine_papers.calculation import Calculation
from recombine_papers.card import (
    BEGIN,
    END,
    build_card,
    format_page,
    summarise_card,
    tabulate_card,
    update_block,
)
from recombine_papers.claims import decide
from recombine_papers.measured_claims import Bounded, Correlates, Exceeds, Gap, Higher, Reads
from recombine_papers.registry import paper_of
from recombine_papers.stored import (
    collect,
    copy_shared_runs,
    fill_blocks,
    format_index,
    has_blocks,
    read_lines,
    read_results,
    shorten_numbers,
    write_results,
)
from recombine_papers.verb import update_page
from stored_runs import stored_run

ROOT = Path(__file__).parents[2]


def decide_on(claim, **world):
    runs = tuple(stored_run(*parts) for parts in build_world(**world))
    return decide(claim, Widths(), Finished(runs))


@pytest.mark.parametrize(
    ("claim", "verdict", "value"),
    [
        (Gap(text="", source="", of=NARROW, by=0.1), "seen", 0.45),
        (Gap(text="", source="", of=WIDE, by=0.1), "seen in part", 0.05),
        (Bounded(text="", source="", first=WIDE, second=NARROW, high=0.05), "refuted", 0.4),
        (Bounded(text="", source="", first=WIDE, second=NARROW, low=0.3, high=0.5), "seen", 0.4),
        (Reads(text="", source="", of=WIDE, quantity="z", low=0.5), "seen", 0.8),
        (Reads(text="", source="", of=NARROW, quantity="z", low=0.5), "refuted", 0.3),
        (Reads(text="", source="", of=NARROW, quantity="other", low=0.5), "not run", None),
        (Exceeds(text="", source="", of=WIDE, quantity="z", over="before", by=0.1), "seen", 0.7),
        (Higher(text="", source="", of=WIDE, than=NARROW, quantity="z", by=0.1), "seen", 0.5),
        (Higher(text="", source="", of=NARROW, than=WIDE, quantity="z", by=0.1), "refuted", -0.5),
        (Correlates(text="", source="", quantity="z", by=0.7), "seen", 1.0),
    ],
)
def test_verdicts_on_measured_numbers(claim, verdict, value):
    def measure(record):
        return {"z": 0.8 if record.settings["width"] == 512 else 0.3, "before": 0.1}

    decided, number = decide_on(claim, measured=measure)
    assert decided == verdict
    assert (None if number is None else number.value) == (None if value is None else pytest.approx(value))
    assert claim.bound


def test_one_seed_is_at_most_seen_in_part():
    number = score_values([0.99])
    assert Reads(text="", source="", of={}, quantity="z", low=0.5).judge(number) == "seen in part"
    with pytest.raises(InputError, match="no values to average"):
        score_values([])
    assert score_values([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.303 * 1 / 3**0.5, abs=1e-3)


def test_the_card_is_made_of_stored_results(tmp_path):
    write_world(tmp_path)
    (row,) = build_card([Widths()], tmp_path)
    assert (row.verdict, row.scale, row.missing) == ("seen", "tiny", 0)
    assert row.core_hours == pytest.approx(2.0)  # four runs of half an hour
    assert "wide beats narrow" in str(tabulate_card([row]).as_text())
    write_world(tmp_path, wide=0.3)  # the same runs with other numbers replace the old ones
    assert build_card([Widths()], tmp_path)[0].verdict == "refuted"


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


def test_a_finished_run_is_collected_as_it_is(tmp_path):
    experiment: Any = Widths()
    run: Any = default_run("hyperteacher", "tiny")
    tiny = replace(run, training=replace(run.training, steps=20, batch_size=8), model=replace(run.model, hidden_dim=4))
    record = Record(settings={"width": 512}, config=tiny)
    experiment.records = lambda scale: [record] if scale == "tiny" else []
    directory = train_run(tiny, out=tmp_path / "runs", evaluation_instances=100)
    assert write_results(tmp_path / "results", experiment, "tiny", collect(experiment, "tiny", tmp_path / "runs"))
    assert not write_results(tmp_path / "results", experiment, "tiny", collect(experiment, "tiny", tmp_path / "runs"))
    stored: Any
    (stored,) = read_results(tmp_path / "results", experiment, "tiny").runs
    result = directory.read_json("result.json")
    assert stored.score("ood", "r2_pooled") == pytest.approx(result["scores"]["ood"]["r2_pooled"]["value"], rel=1e-6)
    assert stored.result["split_sha256"] == result["split_sha256"]
    assert stored.stored["curve"][-1]["step"] == 20


def test_the_index_of_results_says_what_was_run_and_what_it_cost(tmp_path):
    write_world(tmp_path)
    row = format_index([Widths()], tmp_path).splitlines()[-1]
    steps = default_run("hyperteacher", "tiny").training.steps
    expected = f"| `miniature-tiny.jsonl` | 4 | 0, 1 | {steps} | 2.00 | 4 | 2026-11-17 | a CPU | 01234567 |"
    assert row == expected


def test_numbers_are_shortened_and_stay_json():
    assert shorten_numbers({"a": [1 / 3, float("nan"), 2, "x"]}) == {"a": [0.3333333, None, 2, "x"]}


def test_the_page_and_the_short_form(tmp_path):
    write_world(tmp_path)
    experiment = EXPERIMENTS["scale-width"]
    rows = build_card([experiment], tmp_path)
    page = format_page(rows)
    assert paper_of(experiment) == "Scaling can lead to compositional generalization (arXiv 2507.07207)"
    assert f"## {paper_of(experiment)}" in page
    assert "`recombine reproduce scale-width --scale small`" in page
    assert "| claim | verdict | bound |" in page  # columns in which no row has anything are left out
    assert page.count("| not run |") == 2  # one row per statement
    short = summarise_card(rows)
    assert "|" not in short  # nothing to show yet
    assert "not run yet: 1 of *Scaling can lead to compositional generalization*." in short
    assert short.endswith("2 claims about trained networks, run in 0 settings (2 more not run): 2 not run.")
    text = update_block(f"before\n{BEGIN}\nold\n{END}\nafter", "new", Path("README.md"))
    assert text == f"before\n{BEGIN}\nnew\n{END}\nafter"
    with pytest.raises(InputError, match="has no place for the claims"):
        update_block("nothing", "new", Path("README.md"))


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Calculation, "store", lambda *arguments: [])  # takes seconds
    flags = ["reproduce", "claims", "--out", str(tmp_path / "none"), "--results", str(tmp_path), "--json"]
    assert run_verb([*flags, "--page", str(tmp_path / "claims.md")]) == 0
    other = tmp_path / "other.md"
    other.write_text("# Another page\n")
    assert run_verb([*flags, "--page", str(other)]) == 2
    assert other.read_text() == "# Another page\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Another page\n")  # a folder that is not one of results
    assert run_verb(["reproduce", "claims", "--out", str(tmp_path / "none"), "--results", str(tmp_path / "docs")]) == 2
    assert [path.read_text() for path in (tmp_path / "docs").iterdir()] == ["# Another page\n"]
    (tmp_path / "docs" / "README.md").write_bytes(b"\xff\xfe")
    assert run_verb(["reproduce", "claims", "--out", str(tmp_path / "none"), "--results", str(tmp_path / "docs")]) == 2
    value = json.loads(capsys.readouterr().out)
    assert {claim["verdict"] for claim in value["claims"]} == {"not run"}
    assert (tmp_path / "claims.md").read_text().startswith("# Claims")


def test_pages_of_the_documentation_are_those_that_the_results_give():
    rows = build_card(EXPERIMENTS.values(), ROOT / "results")
    assert (ROOT / "docs" / "claims.md").read_text() == format_page(rows)
    pages = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.name != "claims.md"]
    marked = [page for page in pages if BEGIN in page.read_text() or has_blocks(page.read_text())]
    assert ROOT / "README.md" in marked
    for page in marked:
        assert update_page(page.read_text(), rows, ROOT / "results", page, EXPERIMENTS) == page.read_text(), page


def test_tables_between_markers(tmp_path):
    write_world(tmp_path)
    text = "above\n<!-- results: miniature tiny -->\nold\n<!-- results: end -->\nbelow\n"
    filled = fill_blocks(text, tmp_path, {"miniature": Widths()})
    assert filled.startswith("above\n<!-- results: miniature tiny -->\n**R²")
    assert "| 512 | 2 | 0.900" in filled
    assert filled.endswith("<!-- results: end -->\nbelow\n")
    assert fill_blocks(filled, tmp_path, {"miniature": Widths()}) == filled
    assert "has not been run" in fill_blocks(text, tmp_path / "none", {"miniature": Widths()})
    with pytest.raises(InputError, match="unknown experiment 'miniature'"):
        fill_blocks(text, tmp_path, EXPERIMENTS)
