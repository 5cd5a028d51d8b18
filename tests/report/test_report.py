"""The report: what it claims, what it shows when pieces are missing, and that it is one safe file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from recombine.foundation.errors import InputError
from recombine.report.page import render as render_page
from recombine.report.page import write_report
from recombine.report.read import MAX_POINTS, read_runs
from report_cases import HOSTILE, figures_of, make_run, make_score, words


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch):
    """Render runs without the plotting library, which is as long as everything else is not."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly */")
    return lambda *paths, title="Do they recombine?": render_page(read_runs(paths), title)


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


def test_references_that_differ_stand_beside_their_run(render, tmp_path):
    page = render(
        make_run(tmp_path, "hyla", make_score(0.8, chance=0.1)), make_run(tmp_path, "softmax", make_score(0.5))
    )
    assert "chance 0.100, ceiling 1.000" in words(page, "<caption>R² with 95 % interval</caption>", "</table>")


def test_curves_are_drawn_and_thinned(render, tmp_path):
    figures = figures_of(render(make_run(tmp_path, "hyla", make_score(0.8), num_rows=5_001)))
    assert set(figures) - {"answer"} == {
        "loss",
        *(f"{name}-{metric}" for metric in ("r2", "r2_pooled") for name in ("scores", "curves")),
    } - {
        "curves-r2",
        "curves-r2_pooled",
    } | {f"curves-{metric}-{split}" for metric in ("r2", "r2_pooled") for split in ("test", "ood")}
    trace = figures["loss"]["data"][0]
    assert figures["loss"]["layout"]["yaxis"]["type"] == "log"
    assert len(trace["x"]) <= MAX_POINTS
    assert (trace["x"][-1], trace["y"][-1]) == (5_001, pytest.approx(1 / 5_001, rel=1e-5))


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


def test_what_users_write_is_text(render, tmp_path):
    page = render(make_run(tmp_path, HOSTILE[:50]), make_run(tmp_path, "hyla"), title=HOSTILE)
    assert len(re.findall("<script", page)) == 4
    assert "<img" not in page
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert "<" not in figures_of(page)["loss"]["data"][0]["name"]


def test_a_score_that_is_no_number_is_damage(render, tmp_path):
    run = make_run(tmp_path, "hyla", make_score(float("nan")))
    with pytest.raises(InputError, match=r"result\.json is damaged: .* expected a finite number"):
        render(run)


def test_a_loss_that_is_no_number_is_damage_and_a_row_cut_short_is_not(render, tmp_path):
    run = make_run(tmp_path, "hyla", make_score(0.5))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert figures_of(render(run))["loss"]["data"][0]["y"] == [2.0]
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl line 2 is damaged: loss is nan: expected a finite number"):
        render(run)


def test_file_is_small_offline_and_allows_only_its_own_scripts(tmp_path):
    from plotly.offline import get_plotlyjs

    runs = [make_run(tmp_path, name, make_score(0.5), num_rows=2_000) for name in ("hyla", "linear", "softmax")]
    write_report(runs, tmp_path / "report.html", title="Do they recombine?")
    page = (tmp_path / "report.html").read_text()
    assert page.count(get_plotlyjs()) == 1
    rest = page.replace(get_plotlyjs(), "")
    assert len(rest) < 1_000_000
    assert not re.search(r"https?://|@import|url\(|<link|(src|href)=\"[^#]", rest)
    assert "default-src 'none'" in rest
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts}
    assert set(re.findall("'sha256-([^']+)'", rest)) == allowed


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


def test_the_page_opens_with_what_is_asked_and_an_example(render, tmp_path):
    page = render(make_run(tmp_path, "hyla", make_score(0.8)), make_run(tmp_path, "softmax", make_score(0.5)))
    opening = words(page, '<div class="opening">', "</div>")
    assert "A network is trained on some compositions of modules and then asked about held-out ones" in opening
    assert "answer" in figures_of(page)
    assert page.count('class="term"') >= 6
    assert re.search('title="The score of the best answer that ignores the input."', page)


def test_the_answer_uses_paired_differences(render, tmp_path):
    runs = []
    for name, correct in (("hyla", [8.0, 9.0, 7.0]), ("softmax", [5.0, 6.5, 4.0])):
        path = make_run(tmp_path, name, make_score(sum(correct) / 30, width=0.3))
        result = json.loads((path / "result.json").read_text())
        result["composition_sums"] = {"ood": {"r2": [correct, [10.0] * 3]}}
        (path / "result.json").write_text(json.dumps(result))
        runs.append(path)
    assert "its difference from softmax is +0.283 (+0.250 to +0.300)" in answer(render(*runs))
