"""The report: what it claims, what it shows when pieces are missing, and that it is one safe file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from recombine.foundation.errors import InputError
from recombine.models.transformer import TransformerConfig
from recombine.report.findings import NUM_EVALUATED, NUM_SHOWN, read_gallery
from recombine.report.page import render as render_page
from recombine.report.page import write_report
from recombine.report.runs import compare_groups, group_seeds, read_runs
from recombine.report.sections import SECTIONS, Section
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.sraven.task import SRaven
from recombine.training.comparison import order_runs
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run
from report_cases import HOSTILE, make_run, make_score, section_of, words


def answer(page: str) -> str:
    return words(page, '<p class="answer">', "</p>")


ANSWERS = {
    "clear": (
        [0.8, 0.5],
        "hyla generalises best .* R² 0.800 .95 % interval 0.780 to 0.820., 80 % of the way .* clear of every",
    ),
    "order of runs": ([0.5, 0.8], "softmax generalises best"),
    "overlap": ([0.8, 0.77], "hyla scores highest .* overlaps that of softmax, so the order is not certain"),
    "chance": ([0.01, -0.01], "No run is clearly better than chance .* hyla, the highest, has R² 0.010"),
    "below": ([-0.3, -0.5], "even hyla is below chance"),
    "one": ([0.8], "^On held-out compositions, run-[0-9a-f]+ reaches R² 0.800 .* 80 % of the way"),
    "one at chance": ([0.01], "This run is not clearly better than chance"),
    "ceiling": ([0.99, 0.5], "hyla generalises best .* the interval includes the ceiling; its interval is clear"),
    "none finished": ([None, None], "No run has finished yet, so there is no answer; below is what they have written"),
}


@pytest.mark.parametrize(("values", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_answer_claims_what_the_intervals_bear_out(render, tmp_path, values, expected):
    scores = [None if value is None else make_score(value) for value in values]
    runs = [make_run(tmp_path, name, score) for name, score in zip(("hyla", "softmax"), scores, strict=False)]
    assert re.search(expected, answer(render(*runs)))


def test_answer_sees_a_lower_score_with_a_narrow_interval_above_chance(render, tmp_path):
    runs = (
        make_run(tmp_path, "hyla", make_score(0.1, width=0.2)),
        make_run(tmp_path, "softmax", make_score(0.08, width=0.01)),
    )
    assert "though this interval includes chance" in answer(render(*runs))


def test_answer_prefers_less_of_an_error(render, tmp_path):
    error = {"chance": 1.0, "ceiling": 0.0}
    runs = make_run(tmp_path, "hyla", make_score(0.2, **error)), make_run(tmp_path, "softmax", make_score(0.6, **error))
    assert re.search("hyla generalises best .* 80 % of the way", answer(render(*runs)))


def test_answer_ranks_neither_tasks_nor_splits(render, tmp_path):
    first = make_run(tmp_path, "hyla", make_score(0.8))
    assert "different tasks" in answer(render(first, make_run(tmp_path, "hyla", make_score(0.5), task="sraven")))
    page = render(first, make_run(tmp_path, "softmax", make_score(0.5), sha256="8" * 64))
    assert "hyla scores highest" in answer(page)
    assert page.count('class="warning"') == 2
    assert 'class="warning"' not in render(first, make_run(tmp_path, "linear", make_score(0.5)))


def test_table_certificate_and_origin(render, tmp_path):
    page = render(make_run(tmp_path, "hyla", make_score(-0.8)), make_run(tmp_path, "softmax", make_score(0.5)))
    table = words(page, "<caption>R² with 95 % interval</caption>", "</table>")
    assert re.search("hyla −0.800 −0.820 … −0.780 0.950 0.930 … 0.970 softmax 0.500", table)
    assert re.search("Ceiling 1.000 1.000 Chance 0.000 0.000", table)
    assert re.search(
        "Compositions trained20 Held out46 .* Overlap0 .*trainedyes .*connectedyes .*SHA-256 9{64}",
        words(page, "The split</h2>", "</article>"),
    )
    origin = words(page, "How it was made</h2>", "</main>")
    assert re.search("differ in model.attention and agree in everything else", origin)
    assert re.search(r"hyla 151,265 3 5 61 8.2 run-[0-9a-f]{12}", origin)
    assert "2.13.0" in origin
    assert "No verdict yet: hyla and softmax. recombine diagnose RUN" in words(page, '<p class="answer">', "<figure>")


def test_unfinished_runs_show_what_they_have(render, tmp_path):
    finished, partial = make_run(tmp_path, "hyla", make_score(0.8)), make_run(tmp_path, "softmax")
    page = render(finished, partial, make_run(tmp_path, "linear", bare=True))
    table = words(page, "<caption>R² with 95 % interval</caption>", "</table>")
    assert re.search("softmax unfinished, step 5 0.800 0.800 linear unfinished, step 0 – –", table)
    assert "Runs that have not finished are left out" in page
    assert "Without a certificate yet: linear" in page
    bare = render(make_run(tmp_path, "linear", bare=True))
    assert 'id="origin"' in bare
    assert not re.search('id="(scores|curves|certificate)"', bare)


def test_what_users_write_is_text(tmp_path):
    page = render_page(read_runs([make_run(tmp_path, HOSTILE[:50]), make_run(tmp_path, "hyla")]), HOSTILE)
    assert len(re.findall("<script", page)) == 3
    assert "<img" not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page


def test_a_score_that_is_no_number_is_damage(render, tmp_path):
    run = make_run(tmp_path, "hyla", make_score(float("nan")))
    with pytest.raises(InputError, match=r"result\.json cannot be read .* expected JSON"):
        render(run)


def test_a_loss_that_is_no_number_is_damage_and_a_row_cut_short_is_not(render, tmp_path):
    run = make_run(tmp_path, "hyla", make_score(0.5))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_runs([run])[0].loss_curve() == ([1], [2.0])
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl line 2 cannot be read .* expected JSON"):
        render(run)


def test_file_is_small_offline_and_allows_only_its_own_scripts(tmp_path):
    runs = [make_run(tmp_path, name, make_score(0.5), num_rows=2_000) for name in ("hyla", "linear", "softmax")]
    write_report(runs, tmp_path / "report.html", title="Do they recombine?")
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 1_000_000
    assert not re.search(r"https?://|@import|url\((?!#)|<link|(src|href)=\"(?!#|data:)", page)
    assert "default-src 'none'" in page
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert set(re.findall("'sha256-([^']+)'", page)) == allowed


def test_bad_input_gets_one_line_and_leaves_nothing(tmp_path):
    run, out = make_run(tmp_path, "hyla", make_score(0.8)), tmp_path / "out" / "report.html"
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    cases: list[tuple[list[Path], Path, str]] = [
        ([], out, "no runs"),
        ([tmp_path / "missing"], out, "does not exist"),
        ([tmp_path / "folder"], out, "config.json does not exist"),
        ([run], tmp_path / "folder", "cannot write .*folder.*expected a file in a writable folder"),
        ([run], tmp_path / "file" / "report.html", "cannot write .*Not a directory|File exists"),
        ([run], Path("/dev/null"), "cannot write '/dev/null'"),
    ]
    for runs, path, expected in cases:
        with pytest.raises(InputError, match=expected) as caught:
            write_report(runs, path, title="t")
        assert "\n" not in str(caught.value)
    for broken in ('{"scores": {"ood": {"r2": {"value": "high"}}}}', '{"scores": 3}', '{"scores"'):
        (run / "result.json").write_text(broken)
        with pytest.raises(InputError):
            write_report([run], tmp_path / "file", title="t")
    assert not out.parent.exists()
    assert (tmp_path / "file").read_text() == "kept"
    assert not list(tmp_path.rglob("*.tmp"))


def test_static_figures_repeat_and_stay_in_their_folder(tmp_path):
    runs = [make_run(tmp_path / "runs", name, make_score(0.8)) for name in ("$x_", "_y$")]
    for run in runs:
        (run / "result.json").write_text(json.dumps({"scores": {"ood": {"../up": make_score(0.5)}}}))
    for folder in ("one", "two"):
        write_report(runs, tmp_path / "report.html", title="t", static=tmp_path / folder / "figures")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / f / "figures").iterdir()} for f in ("one", "two")
    )
    assert first == second
    assert set(first) == {
        f"{name}.{kind}" for name in ("loss", "scores----up", "curves----up") for kind in ("png", "svg")
    }
    assert all(content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml") for name, content in first.items())
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "one", "two", "report.html"}


def test_the_answer_uses_paired_differences(render, tmp_path):
    runs = []
    for name, correct in (("hyla", [8.0, 9.0, 7.0]), ("softmax", [5.0, 6.5, 4.0])):
        path = make_run(tmp_path, name, make_score(sum(correct) / 30, width=0.3))
        result = json.loads((path / "result.json").read_text())
        result["composition_sums"] = {"ood": {"r2": [correct, [10.0] * 3]}}
        (path / "result.json").write_text(json.dumps(result))
        runs.append(path)
    assert "its difference from softmax is +0.283 (+0.212 to +0.355)." in answer(render(*runs))


@pytest.fixture(scope="module", params=["sraven", "fuzzy_logic"])
def trained(request, tmp_path_factory) -> Path:
    """A real run of a few steps."""
    task = {"sraven": SRaven(num_features=2), "fuzzy_logic": FuzzyLogic(num_examples=8)}[request.param]
    model = TransformerConfig(num_layers=1, embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=2)
    config = RunConfig(task=task, model=model, training=TrainingConfig(steps=2, batch_size=8))
    return train_run(config, out=tmp_path_factory.mktemp("runs"), device="cpu", evaluation_instances=64).path


def test_gallery_judges_as_the_task_does(trained):
    run = read_runs([trained])[0]
    gallery = read_gallery(run)
    assert gallery.num_evaluated == NUM_EVALUATED
    assert len(gallery.wrong) == min(NUM_SHOWN, NUM_EVALUATED - gallery.num_right) > 0
    assert len(gallery.right) == min(NUM_SHOWN, gallery.num_right)
    card = gallery.wrong[0]
    assert len(card.composition) == 2
    assert card.picture.startswith("<svg")
    assert re.search(r"wrong in (shape|size)|error \d", " ".join(card.remarks))


def test_gallery_is_optional_and_breaks_nothing(render, trained, tmp_path):
    run = tmp_path / trained.name
    shutil.copytree(trained, run)
    page = render(run)
    assert "instances are right" in section_of(page, "gallery")
    write_report([run], tmp_path / "report.html", title="t", gallery=False)
    assert 'id="gallery"' not in (tmp_path / "report.html").read_text()
    (run / "checkpoint.safetensors").write_bytes(b"nothing")
    page = render(run)
    assert "checkpoint.safetensors cannot be read" in section_of(page, "gallery")
    assert str(tmp_path) not in page
    assert 'id="origin"' in page


def test_a_new_section_is_one_function(render, tmp_path, monkeypatch):
    """A function in the list of sections is all it takes, and without it the page is as before."""
    run = make_run(tmp_path, "hyla", make_score(0.5))
    before = render(run)

    def show_weather(runs):
        template = "<p>{{ section.content.words }} on {{ runs | length }} run</p>"
        return Section(name="weather", title="Weather", content={"words": "Sun & wind"}, template=template)

    monkeypatch.setattr("recombine.report.page.SECTIONS", [show_weather, *SECTIONS])
    page = render(run)
    assert "<p>Sun &amp; wind on 1 run</p>" in page
    assert page.index('id="weather"') < page.index('id="scores"')
    assert 'id="weather"' not in before


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
    result["scores"] = {split: {"r2": make_score(value + 0.1 / 30)} for split in ("test", "ood")}
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
    lead = compare_groups(groups, "r2")
    assert lead is not None
    assert lead.value == pytest.approx(0.45)


def test_the_headline_is_about_networks(render, runs):
    answer = words(render(*(run.directory.path for run in runs)), '<p class="answer">', "</p>")
    assert answer.startswith("On held-out compositions, the R² of hidden dim 512 is 0.450 above")
    assert "that of hidden dim 16 (paired by seed:" in answer


def test_two_seeds_have_no_interval_but_their_scores(render, runs):
    page = render(*(run.directory.path for run in runs))
    assert "(paired by seed: +0.430 and +0.470)" in words(page, '<p class="answer">', "</p>")
    lead = words(page, '<p class="lead">', "</p>")
    assert "hidden dim 512 has R² 0.978 on held-out compositions (its two seeds 0.973 and 0.983)" in lead
    assert "interval" not in lead
    assert "with two seeds, both scores are given instead" in page
    (wide, _) = group_seeds(runs, "r2")
    score = wide.score("ood", "r2")
    assert (score.low, score.high) == pytest.approx((0.9733, 0.9833), abs=1e-4)
    assert wide.held_out.low < 0.95  # the interval, which decides whether a difference is clear


def test_three_seeds_have_an_interval(render, tmp_path):
    runs = read_runs([make_seed(tmp_path, 16, seed, 0.5 + 0.2 * seed) for seed in range(3)])
    page = render(*(run.directory.path for run in runs))
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
