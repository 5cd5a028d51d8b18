"""The report: what it claims, what it shows when pieces are missing, and that it is one safe file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from recombine.errors import InputError
from recombine.report.page import render as render_page
from recombine.report.page import write_report
from recombine.report.runs import MAX_POINTS, read_runs
from recombine.store import RunDirectory

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SHA256 = "9" * 64


def make_score(value: float, width: float = 0.02, chance: float = 0.0, ceiling: float = 1.0) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width, "chance": chance, "ceiling": ceiling}


def make_run(
    root: Path,
    attention: str,
    ood: dict[str, float] | None = None,
    *,
    sha256: str = SHA256,
    task: str = "fuzzy_logic",
    num_rows: int = 5,
    bare: bool = False,
) -> Path:
    """A run directory; unfinished without a score, and with nothing but its configuration if `bare`."""
    config = {"task": {"name": task, "seed": 3}, "model": {"kind": "transformer", "attention": attention}}
    run = RunDirectory.create(root, "run", config)
    if bare:
        return run.path
    counts = {"num_train": 20, "num_ood": 46, "num_unknown": 6, "overlap": 0, "num_components": 1}
    certificate = {**counts, "covered": True, "connected": True, "coverage": {"0": 3, "1": 2}, "sha256": sha256}
    run.write_json("split.json", {"certificate": certificate})
    run.write_json("environment.json", {"torch": "2.13.0", "source_sha256": "a" * 64})
    rows = [
        {
            "step": step,
            "loss": 1 / step,
            "scores": {name: {"r2": 1 - 1 / step, "r2_pooled": 0.5} for name in ("test", "ood")},
        }
        for step in range(1, num_rows + 1)
    ]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ood is not None:
        scores = {"test": {"r2": make_score(0.95), "r2_pooled": make_score(0.9)}, "ood": {"r2": ood, "r2_pooled": ood}}
        facts = {
            "task": task,
            "num_parameters": 151_265,
            "seed": 3,
            "steps": 5,
            "seconds": 61.2,
            "steps_per_second": 8.25,
        }
        run.write_json("result.json", {**facts, "split_sha256": sha256, "scores": scores})
    return run.path


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch):
    """Render runs without the plotting library, which is as long as everything else is not."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly */")
    return lambda *paths, title="Do they recombine?": render_page(read_runs(paths), title)


def words(page: str, start: str, end: str) -> str:
    """The text between two marks, as a reader sees it."""
    inner = page[page.index(start) : page.index(end, page.index(start))]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", inner[len(start) :])).strip()


def answer(page: str) -> str:
    return words(page, '<p class="answer">', "</p>")


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


ANSWERS = {
    "clear": (
        [0.8, 0.5],
        "hyla generalises best .* R² 0.800 .95 % interval 0.780 to 0.820., 80 % of the way .* clear of every",
    ),
    "order of runs": ([0.5, 0.8], "softmax generalises best"),
    "overlap": ([0.8, 0.77], "hyla scores highest .* overlaps that of softmax, so the order is open"),
    "chance": ([0.01, -0.01], "No run is clearly better than chance .* hyla, the highest, has R² 0.010"),
    "below": ([-0.3, -0.5], "even hyla is below chance"),
    "one": ([0.8], "^On combinations never seen in training, run-[0-9a-f]+ reaches R² 0.800 .* 80 % of the way"),
    "one at chance": ([0.01], "This run is not clearly better than chance"),
    "ceiling": ([0.99, 0.5], "hyla generalises best .* the interval includes the ceiling; its interval is clear"),
    "none finished": ([None, None], "No run has finished yet, so there is no answer; below is what they have written"),
    "not a number": ([float("nan"), 0.5], "softmax reaches R² 0.500"),
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
        "Combinations trained20 Held out46 .* Overlap0 .*trainedyes .*connectedyes .*SHA-256 9{64}",
        words(page, "The split</h2>", "</article>"),
    )
    origin = words(page, "How it was made</h2>", "</main>")
    assert re.search("differ in model.attention, and in nothing else", origin)
    assert re.search(r"hyla 151,265 3 5 61 8.2 run-[0-9a-f]{12}", origin)
    assert "2.13.0" in origin


def test_references_that_differ_stand_beside_their_run(render, tmp_path):
    page = render(
        make_run(tmp_path, "hyla", make_score(0.8, chance=0.1)), make_run(tmp_path, "softmax", make_score(0.5))
    )
    assert "chance 0.100, ceiling 1.000" in page


def test_curves_are_drawn_and_thinned(render, tmp_path):
    figures = figures_of(render(make_run(tmp_path, "hyla", make_score(0.8), num_rows=5_001)))
    assert set(figures) == {
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


def test_not_a_number_leaves_a_gap(render, tmp_path):
    run = make_run(tmp_path, "hyla", make_score(float("nan")))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": NaN}\n{"step": 3, "lo')
    assert figures_of(render(run))["loss"]["data"][0]["y"] == [2.0, None]


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


def test_browser_draws_every_figure_and_follows_clicks(browser, tmp_path):
    scores = {"hyla": make_score(0.8), HOSTILE[:50]: make_score(0.5), "softmax": None}
    runs = [make_run(tmp_path / "runs", name, score) for name, score in scores.items()]
    write_report(runs, tmp_path / "report.html", title=HOSTILE)
    browser.open(tmp_path / "report.html")
    shown = "[...document.querySelectorAll('.plot')].filter(each => each.offsetParent)"
    drawn = f"{shown}.filter(each => each.querySelector('svg.main-svg .trace')).map(each => each.dataset.figure)"
    colour = "document.querySelector('[data-figure=loss] .js-line').style.stroke"
    assert browser.run(drawn) == ["scores-r2", "loss", "curves-r2-ood", "curves-r2-test"]
    light = browser.run(colour)
    assert browser.run(f"document.getElementById('theme').click(); {colour}") != light
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    browser.run("metric.value = 'r2_pooled'; metric.dispatchEvent(new Event('change'))")
    assert browser.run(drawn) == ["scores-r2_pooled", "loss", "curves-r2_pooled-ood", "curves-r2_pooled-test"]
    lines = "document.querySelectorAll('[data-figure=loss] .js-line').length"
    assert browser.run(lines) == 3
    assert browser.run(f"document.querySelector('[data-series]').click(); {lines}") == 2
    browser.send("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    browser.run("new Promise(resolve => setTimeout(resolve, 500))")
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.find_troubles() == []
    assert browser.find_requests() == [(tmp_path / "report.html").as_uri()]


def test_a_new_section_is_one_file(tmp_path, monkeypatch, render):
    """A file in the folder of sections is all it takes, and without it the page is as before."""
    from recombine.report import sections

    run = make_run(tmp_path, "hyla", make_score(0.5))
    before = render(run)
    (tmp_path / "weather.py").write_text(
        "from recombine.report.sections import Section\n"
        "ORDER = 15\n"
        "def build(runs):\n"
        "    template = '<p>{{ section.content.words }} on {{ runs | length }} run</p>'\n"
        "    return Section(name='weather', title='Weather', content={'words': 'Sun & wind'}, template=template)\n"
    )
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    page = render(run)
    assert "<p>Sun &amp; wind on 1 run</p>" in page
    assert page.index('id="weather"') < page.index('id="scores"')
    assert 'id="weather"' not in before
