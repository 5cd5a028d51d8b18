"""Shared by the tests of the report."""

import pytest
from markupsafe import Markup

from recombine.report import page
from recombine.report.runs import read_runs


@pytest.fixture
def render(monkeypatch):
    """Render runs with figures that are drawn but not turned into SVG, which takes most of the time."""

    def draw_only(draw, name):
        draw()
        return Markup("[{}]").format(name)

    monkeypatch.setattr(page, "render_inline", draw_only)
    return lambda *paths, title="Do they recombine?": page.render(read_runs(paths), title)
