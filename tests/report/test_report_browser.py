"""The report in a browser: every figure is shown, every control works, nothing that a user wrote runs."""

import json

import pytest

from recombine.report.page import write_report
from report_cases import HOSTILE, make_probed, make_run


@pytest.fixture
def opened(browser, tmp_path):
    """Two probed runs and an unfinished one, whose names are scripts; no request, error or script at the end."""
    runs = [make_probed(tmp_path / "runs", name) for name in ("hyla", HOSTILE[:50])]
    write_report([*runs, make_run(tmp_path / "runs", "softmax")], tmp_path / "report.html", title=HOSTILE)
    browser.open(tmp_path / "report.html")
    yield browser
    browser.send("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.find_troubles() == []
    assert browser.find_requests() == [(tmp_path / "report.html").as_uri()]


def test_browser_shows_every_figure_and_follows_every_choice(opened):
    def pick(section: str, name: str, value: str) -> None:
        select = f"document.querySelector('#{section} select[name={name}]')"
        opened.run(
            f"{select}.value = {json.dumps(value)}; {select}.dispatchEvent(new Event('change', {{bubbles: true}}))"
        )

    def shown(section: str) -> list[str]:
        """The figures a reader sees in a section, each of them with something in it."""
        plots = f"[...document.querySelectorAll('#{section} .plot')].filter(each => each.offsetParent)"
        names = opened.run(f"{plots}.map(each => each.dataset.figure)")
        assert opened.run(f"{plots}.every(each => each.querySelector('path').getBoundingClientRect().width > 0)")
        return names

    assert (shown("scores"), shown("curves")) == (["scores-r2"], ["loss", "curves-r2"])
    pick("scores", "metric", "r2_pooled")
    pick("curves", "metric", "r2_pooled")
    assert (shown("scores"), shown("curves")) == (["scores-r2_pooled"], ["loss", "curves-r2_pooled"])
    pick("decodability", "metric", "r2")
    assert shown("decodability") == ["decoders-r2"]
    assert shown("similarity") == ["similarity-0"]
    pick("similarity", "run", "1")
    assert shown("similarity") == ["similarity-1"]
    pick("ablations", "run", "1")
    assert shown("ablations") == ["ablations-1", "swap-1", "by-rule-1"]

    points = "[...document.querySelectorAll('#codes .code-map path')]"
    fills = f"new Set({points}.map(each => getComputedStyle(each).fill)).size"
    place = f"{points}[0].getAttribute('transform')"
    assert opened.run(f"{points}.length") == 60
    assert opened.run(f"{points}[1].textContent") == f"{HOSTILE}\ntarget 1, held-out"
    assert opened.run(fills) == 3  # by module
    for colour, number in (("target", 8), ("unseen", 2), ("only alpha", 2)):
        pick("codes", "colour", colour)
        assert opened.run(fills) == number
    before = opened.run(place)
    pick("codes", "site", "codes.1")
    assert opened.run(place) != before
    pick("codes", "run", "1")
    assert (
        opened.run("[...document.querySelectorAll('#codes tr[aria-current]')].filter(each => each.offsetParent).length")
        == 1
    )


def test_browser_switches_between_light_and_dark(opened):
    colours = "['[data-figure=loss] path[style*=series]', '.code-map path'].map(each => getComputedStyle(document.querySelector(each)))"
    strokes = f"(([line, point]) => [line.stroke, point.fill])({colours})"
    light = opened.run(strokes)
    dark = opened.run(f"document.getElementById('theme').click(); {strokes}")
    assert light[0] != dark[0] != "none"
    assert light[1] != dark[1]
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
