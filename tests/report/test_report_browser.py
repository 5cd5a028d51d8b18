"""The report in a browser: every figure is drawn, every control works, nothing that a user wrote runs."""

from __future__ import annotations

import json

from recombine.report.page import write_report
from report_cases import HOSTILE, make_probed, make_run, make_score


def test_browser_draws_every_figure_and_follows_clicks(browser, tmp_path):
    scores = {"hyla": make_score(0.8), HOSTILE[:50]: make_score(0.5), "softmax": None}
    runs = [make_run(tmp_path / "runs", name, score) for name, score in scores.items()]
    write_report(runs, tmp_path / "report.html", title=HOSTILE)
    browser.open(tmp_path / "report.html")
    shown = "[...document.querySelectorAll('.plot')].filter(each => each.offsetParent)"
    drawn = f"{shown}.filter(each => each.querySelector('svg.main-svg .trace')).map(each => each.dataset.figure)"
    colour = "document.querySelector('[data-figure=loss] .js-line').style.stroke"
    assert browser.run(drawn) == ["answer", "scores-r2", "loss", "curves-r2-ood", "curves-r2-test"]
    light = browser.run(colour)
    assert browser.run(f"document.getElementById('theme').click(); {colour}") != light
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    browser.run("metric.value = 'r2_pooled'; metric.dispatchEvent(new Event('change'))")
    assert browser.run(drawn) == ["answer", "scores-r2_pooled", "loss", "curves-r2_pooled-ood", "curves-r2_pooled-test"]
    lines = "document.querySelectorAll('[data-figure=loss] .js-line').length"
    assert browser.run(lines) == 3
    assert browser.run(f"document.querySelector('[data-series]').click(); {lines}") == 2
    browser.send("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    browser.run("new Promise(resolve => setTimeout(resolve, 500))")
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.find_troubles() == []
    assert browser.find_requests() == [(tmp_path / "report.html").as_uri()]


def test_browser_follows_every_picker(browser, tmp_path):
    runs = [make_probed(tmp_path / "runs", name) for name in ("hyla", HOSTILE[:50])]
    write_report(runs, tmp_path / "report.html", title=HOSTILE)
    browser.open(tmp_path / "report.html")

    def pick(section: str, name: str, value: str) -> None:
        select = f"document.querySelector('#{section} select[name={name}]')"
        browser.run(
            f"{select}.value = {json.dumps(value)}; {select}.dispatchEvent(new Event('change', {{bubbles: true}}))"
        )

    def shown(section: str) -> list[str]:
        """The figures a reader sees in a section, each of them drawn."""
        plots = f"[...document.querySelectorAll('#{section} .plot')].filter(each => each.offsetParent)"
        drawn = (
            "each.querySelector('.main-svg .trace, .main-svg .hm, .main-svg .bars, .main-svg .scatterlayer .points')"
        )
        names = browser.run(f"{plots}.map(each => each.dataset.figure)")
        assert browser.run(f"{plots}.filter(each => {drawn}).map(each => each.dataset.figure)") == names
        return names

    assert shown("decodability") == [f"decoders-f1-{kind}" for kind in ("codes", "residual", "hidden")]
    pick("decodability", "metric", "r2")
    assert shown("decodability") == [f"decoders-r2-{kind}" for kind in ("codes", "residual", "hidden")]

    assert shown("similarity") == ["similarity-0-codes.1-centred"]
    pick("similarity", "site", "codes.0")
    pick("similarity", "run", "1")
    pick("similarity", "kind", "cosine")
    assert shown("similarity") == ["similarity-1-codes.0-cosine"]

    def swaps(run: int) -> list[str]:
        return [f"{name}-{run}-{split}" for name in ("swap", "by-rule") for split in ("ood", "test")]

    assert shown("ablations") == ["heads-0-mean", "layers-0", *swaps(0)]
    pick("ablations", "kind", "zero")
    pick("ablations", "run", "1")
    assert shown("ablations") == ["heads-1-zero", "layers-1", *swaps(1)]

    points = "[...document.querySelectorAll('[data-figure=codes] .points path')]"
    fills = f"new Set({points}.map(each => each.style.fill)).size"
    place = f"{points}[0].getAttribute('transform')"
    assert shown("codes") == ["codes"]
    assert browser.run(f"{points}.length") == 60
    assert browser.run(fills) == 3  # by module
    for colour, number in (("target", 8), ("unseen", 2), ("only alpha", 2)):
        pick("codes", "colour", colour)
        assert browser.run(fills) == number
    before = browser.run(place)
    pick("codes", "site", "codes.1")
    assert browser.run(place) != before
    marked = "[...document.querySelectorAll('#codes tr[aria-current]')].filter(each => each.offsetParent).length"
    pick("codes", "run", "1")
    assert browser.run(marked) == 1
    fill = f"{points}[0].style.fill"
    light = browser.run(fill)
    assert browser.run(f"document.getElementById('theme').click(); {fill}") != light
    browser.send("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    browser.run("new Promise(resolve => setTimeout(resolve, 500))")
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.find_troubles() == []
    assert browser.find_requests() == [(tmp_path / "report.html").as_uri()]
